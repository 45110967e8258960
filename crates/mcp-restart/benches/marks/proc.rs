//! What Linux tells about processes.

use crate::Outcome;
use std::fs;

/// How often these processes, all threads counted, gave up a processor: each wake-up ends with one.
pub(crate) fn switches(pids: &[u32]) -> Outcome<u64> {
    let mut total = 0;
    for pid in pids {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = fs::read_to_string(thread?.path().join("status"))?;
            total +=
                field(&status, "voluntary_ctxt_switches")? + field(&status, "nonvoluntary_ctxt_switches")?;
        }
    }
    Ok(total)
}

/// Their resident memory, in KiB.
pub(crate) fn resident_kib(pids: &[u32]) -> Outcome<u64> {
    pids.iter().map(|pid| field(&fs::read_to_string(format!("/proc/{pid}/status"))?, "VmRSS")).sum()
}

/// The memory that belongs to this process alone, in KiB.
pub(crate) fn private_kib(pid: u32) -> Outcome<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(field(&rollup, "Private_Clean")? + field(&rollup, "Private_Dirty")?)
}

/// The child of `parent` whose program begins with `program`; the system keeps 15 letters of it.
pub(crate) fn child(parent: u32, program: &str) -> Outcome<u32> {
    for entry in fs::read_dir("/proc")? {
        // A process may be gone by the time it is read, and not every entry is one.
        let Ok(status) = fs::read_to_string(entry?.path().join("status")) else { continue };
        if field(&status, "PPid").is_ok_and(|found| found == u64::from(parent))
            && status.lines().next().is_some_and(|name| name.ends_with(program))
        {
            return Ok(u32::try_from(field(&status, "Pid")?)?);
        }
    }
    Err(format!("no {program} below {parent}").into())
}

/// A number of a `status` file.
fn field(status: &str, name: &str) -> Outcome<u64> {
    let value = status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.split_whitespace().next())
        .ok_or_else(|| format!("no {name} in a status file"))?;
    Ok(value.parse()?)
}
