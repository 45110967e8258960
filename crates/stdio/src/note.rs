//! What a restart says in words, for a person or a model.

use mcp_restart_protocol::stdio::StdioClient;
use std::time::Duration;

/// What there is to tell.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// Names of the servers that were ended, or would have been, with their process ids.
    pub(crate) meant: Vec<(String, u32)>,
    /// The same of those that could not be ended.
    pub(crate) failed: Vec<(String, u32)>,
    /// Whether nothing was touched.
    pub(crate) dry_run: bool,
    /// How many of them were orphans.
    pub(crate) orphans: usize,
    /// How many others there are that the caller may not touch.
    pub(crate) out_of_reach: usize,
    /// Names of the servers that were not started again, and by whom.
    pub(crate) missing: Vec<(String, StdioClient)>,
    /// How long was watched.
    pub(crate) watched: Duration,
    /// The server through which the request came.
    pub(crate) own: Option<OwnServer>,
}

/// What becomes of the server through which the request came.
#[derive(Debug)]
pub(crate) struct OwnServer {
    pub(crate) pid: u32,
    /// How long after the delivery of the answer it ends; not at all, if not asked for.
    pub(crate) ends_after: Option<Duration>,
}

/// The whole note.
pub(crate) fn note(story: &Story) -> String {
    let mut sentences = vec![done(story)];
    if !story.failed.is_empty() {
        sentences.push(format!("Could not be ended: {}.", list(&story.failed)));
    }
    sentences.extend(missing(story));
    match story.orphans {
        0 => {}
        _ if story.dry_run => {}
        1 => sentences.push("1 of them was an orphan, which nobody starts again.".to_owned()),
        many => sentences.push(format!("{many} of them were orphans, which nobody starts again.")),
    }
    sentences.extend(story.own.as_ref().map(|own| of_own(own, story.dry_run)));
    if story.out_of_reach > 0 {
        let count = servers(story.out_of_reach);
        sentences.push(format!("Left alone: {count} that the caller's control does not reach."));
    }
    sentences.join(" ")
}

fn done(story: &Story) -> String {
    let none = match story.own {
        Some(_) => "No other server that is meant runs.",
        None => "None of the servers that are meant runs.",
    };
    match (story.dry_run, story.meant.len()) {
        (false, 0) if !story.failed.is_empty() => "None was ended.".to_owned(),
        (_, 0) => none.to_owned(),
        (true, _) => format!("Nothing was touched. A restart would end {}.", list(&story.meant)),
        (false, _) => format!("Ended: {}.", list(&story.meant)),
    }
}

fn list(servers: &[(String, u32)]) -> String {
    let names: Vec<_> = servers.iter().map(|(name, pid)| format!("{name} (pid {pid})")).collect();
    names.join(", ")
}

/// A sentence for each client that has not started its servers again.
fn missing(story: &Story) -> Vec<String> {
    let mut clients: Vec<(&StdioClient, Vec<&str>)> = Vec::new();
    for (name, client) in &story.missing {
        match clients.iter_mut().find(|(known, _)| *known == client) {
            Some((_, names)) => names.push(name),
            None => clients.push((client, vec![name])),
        }
    }
    let seconds = story.watched.as_secs_f64();
    clients
        .into_iter()
        .map(|(StdioClient { program, pid, agent }, names)| {
            let names = names.join(", ");
            let way = match agent {
                Some(agent) => format!(
                    "if it does not with its next call, restart that agent: restart_agent with the name {agent:?}, or \
                     `mcp-restartctl restart {agent}`"
                ),
                None => "if it does not with its next call, reconnect the server there or restart that program".to_owned(),
            };
            format!("{program} (pid {pid}) has not started {names} again within {seconds} s: {way}.")
        })
        .collect()
}

fn of_own(own: &OwnServer, dry_run: bool) -> String {
    let OwnServer { pid, ends_after } = own;
    match ends_after {
        Some(_) if dry_run => {
            format!(
                "It would also end the server through which this was asked (pid {pid}), after the answer."
            )
        }
        Some(delay) => format!(
            "The server through which this was asked (pid {pid}) ends {} ms after this answer was delivered; its client \
             has to start it again.",
            delay.as_millis()
        ),
        None => format!(
            "The server through which this was asked (pid {pid}) is left out; with includeSelf it ends after the answer."
        ),
    }
}

fn servers(count: usize) -> String {
    if count == 1 { "1 server".to_owned() } else { format!("{count} servers") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(program: &str, pid: u32, agent: Option<&str>) -> StdioClient {
        StdioClient { program: program.to_owned(), pid, agent: agent.map(str::to_owned) }
    }

    #[test]
    fn who_did_not_start_its_servers_again_is_told_once_with_the_way_that_helps() {
        let claude = client("claude", 7, Some("reviewer"));
        let story = Story {
            meant: vec![("a".into(), 1), ("b".into(), 2), ("c".into(), 3)],
            failed: vec![("d".into(), 4)],
            missing: vec![
                ("a".into(), claude.clone()),
                ("c".into(), client("Cursor", 9, None)),
                ("b".into(), claude),
            ],
            watched: Duration::from_millis(1500),
            ..Story::default()
        };
        assert_eq!(
            note(&story),
            "Ended: a (pid 1), b (pid 2), c (pid 3). Could not be ended: d (pid 4). \
             claude (pid 7) has not started a, b again within 1.5 s: if it does not with its next call, restart that \
             agent: restart_agent with the name \"reviewer\", or `mcp-restartctl restart reviewer`. \
             Cursor (pid 9) has not started c again within 1.5 s: if it does not with its next call, reconnect the \
             server there or restart that program."
        );
    }

    #[test]
    fn a_dry_run_says_what_would_be_and_claims_nothing() {
        let own = OwnServer { pid: 8, ends_after: Some(Duration::from_millis(500)) };
        let story = Story {
            meant: vec![("a".into(), 1)],
            dry_run: true,
            orphans: 1,
            own: Some(own),
            ..Story::default()
        };
        assert_eq!(
            note(&story),
            "Nothing was touched. A restart would end a (pid 1). It would also end the server through which this was \
             asked (pid 8), after the answer."
        );
        assert_eq!(
            note(&Story { dry_run: true, ..Story::default() }),
            "None of the servers that are meant runs."
        );
    }

    #[test]
    fn what_was_left_alone_is_said() {
        let own = Some(OwnServer { pid: 8, ends_after: None });
        let story = Story { out_of_reach: 2, own, ..Story::default() };
        assert_eq!(
            note(&story),
            "No other server that is meant runs. The server through which this was asked (pid 8) is left out; with \
             includeSelf it ends after the answer. Left alone: 2 servers that the caller's control does not reach."
        );
    }
}
