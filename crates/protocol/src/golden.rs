//! The bytes of every variant. When this snapshot changes, so does what an older program understands:
//! bump `hello::PROTOCOL`, or `shim::SHIM_PROTOCOL` and keep reading the old one.

use crate::agent::{AgentState, AgentView, ExitReason, LastExit, Resume};
use crate::answer::{
    AgentAnswer, Answer, Caller, ErrorCode, Event, Failure, Handoff, LogLines, McpConfig, NeedRestart, Note,
    Owner, Previous, ProtectedProcess, Recovered, RestartAnswer, ServerBody, ServerFrame, ServerStatus,
    Terminal,
};
use crate::codec::{Decode, Encode, from_bytes, to_bytes};
use crate::request::{ClientFrame, Credential, Request, RestartRequest};
use crate::shim::{FromShim, KeepChildren, Leftover, ShimExit, ShimFacts, ShimLaunch, ToShim};
use crate::stdio::{
    NotRespawned, Respawned, StdioClient, StdioFailure, StdioRestartRequest, StdioRestarted, StdioServer,
    StdioStatus,
};
use crate::timestamp::Timestamp;
use std::fmt::{Debug, Write as _};

/// One line per value: its kind, then its bytes. Every value is read back.
fn lines<T: Encode + Decode<()> + Debug + PartialEq>(values: Vec<T>) -> String {
    let mut text = String::new();
    for value in values {
        let bytes = to_bytes(&value).unwrap();
        assert_eq!(from_bytes::<T>(&bytes).unwrap(), value);
        let kind = format!("{value:?}");
        let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let _ = write!(text, "{kind} ");
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn exit() -> LastExit {
    let (code, signal) = (Some(-1), Some("SIGTERM".to_owned()));
    let message = Some("m".to_owned());
    LastExit {
        code,
        signal,
        at: Timestamp(300),
        reason: ExitReason::Restart,
        forced: true,
        leftovers: 2,
        message,
    }
}

fn client() -> StdioClient {
    StdioClient { program: "p".into(), pid: 7, agent: Some("a".into()) }
}

fn view() -> AgentView {
    AgentView {
        name: "a".into(),
        kind: "k".into(),
        state: AgentState::Running,
        pid: Some(1),
        generation: 2,
        started_at: Some(Timestamp(3)),
        uptime_ms: Some(4),
        autostart: true,
        tty: false,
        session_id: Some("s".into()),
        connected_at: Some(Timestamp(5)),
        config_changed: true,
        listed: false,
        log_file: "l".into(),
        last_exit: Some(exit()),
    }
}

#[test]
fn the_bytes_of_every_request_are_pinned() {
    let (path, name) = ("p".to_owned(), "a".to_owned());
    let restart = RestartRequest {
        path: path.clone(),
        name: Some(name.clone()),
        note: Some("n".into()),
        resume: Some(Resume::Fresh),
        request_id: Some("i".into()),
        force: true,
        wait: false,
    };
    insta::assert_snapshot!(lines(vec![
        Request::List { all: true },
        Request::Status,
        Request::Start { path: path.clone(), name: name.clone(), force: false, wait: true },
        Request::Stop { path, name: name.clone(), wait: false },
        Request::Restart(restart),
        Request::Handoff { name: Some(name.clone()) },
        Request::Logs { name: name.clone(), lines: 300 },
        Request::StdioServers,
        Request::RestartStdioServers(StdioRestartRequest {
            path: "p".into(),
            names: vec!["s".into()],
            stale_only: true,
            orphaned_only: false,
            include_self: true,
            dry_run: false,
            respawn_wait_ms: 3,
            self_delay_ms: 4,
            connection: Some(("127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap())),
        }),
        Request::Terminal { name: name.clone() },
        Request::McpConfig { name },
        Request::Subscribe,
        Request::Authenticate,
        Request::Protected,
        Request::MarkerChanged,
        Request::Delivered { delivery: 70_000 },
        Request::Session { id: "s".into() },
    ]));
}

#[test]
fn the_bytes_of_every_credential_are_pinned() {
    let (peer, local) = ("127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
    let frame = |credential| ClientFrame { id: 7, credential, allows_stale: true, request: Request::Status };
    insta::assert_snapshot!(lines(vec![
        frame(Credential::Peer),
        frame(Credential::Token("t".into())),
        frame(Credential::Http { token: Some("t".into()), peer, local }),
        frame(Credential::Admitted(Caller::LocalUser { pid: Some(3) })),
    ]));
}

#[test]
fn the_bytes_of_every_answer_are_pinned() {
    let status = ServerStatus {
        version: "v".into(),
        pid: 1,
        url: Some("u".into()),
        uptime_ms: 2,
        config_file: "f".into(),
        config_error: Some("e".into()),
        state_dir: "d".into(),
        state_error: Some("w".into()),
        stale: Some("s".into()),
        endpoint_error: Some("b".into()),
        contaminated: Some("c".into()),
        pending_config: vec!["port".into()],
        adopted: vec!["a".into()],
        recovered: vec![Recovered { agent: Some("a".into()), text: "done".into(), attention: true }],
        need_restart: vec![NeedRestart { name: "a".into(), reason: "r".into() }],
        stale_shims: vec!["a".into()],
        agents: vec![view()],
        unlisted: vec![],
        caller: Caller::LocalUser { pid: Some(3) },
    };
    let restarted = RestartAnswer {
        accepted: true,
        generation: 3,
        agent: view(),
        previous: Some(Previous { pid: 1, exit: Some(exit()) }),
        config_diff: vec!["args".into()],
        rolled_back: false,
        warnings: vec!["w".into()],
        replayed: true,
        replayed_at: Some(Timestamp(9)),
        delivery: Some(4),
    };
    let froms = [Caller::Operator, Caller::Agent { name: "b".into() }, Caller::Supervisor, Caller::Unknown];
    let handoff = Handoff {
        agent: "a".into(),
        generation: 3,
        at: Timestamp(1),
        notes: froms.into_iter().map(|from| Note { from, text: Some("n".into()) }).collect(),
        config_diff: vec!["env.X".into()],
        request_id: Some("i".into()),
        rolled_back: true,
        read_at: Some(Timestamp(2)),
    };
    let answer = |answer| ServerFrame { id: 7, body: ServerBody::Answer(answer) };
    let protected = |owner| ProtectedProcess {
        pid: 1,
        parent: 2,
        group: 3,
        names: vec!["n".into()],
        command: "c".into(),
        owner,
    };
    let failure = Failure::new(ErrorCode::Internal, "m").hint("h");
    insta::assert_snapshot!(lines(vec![
        answer(Answer::Agents(vec![])),
        answer(Answer::Status(Box::new(status))),
        answer(Answer::Agent(Box::new(AgentAnswer { agent: view(), delivery: None }))),
        answer(Answer::Restarted(Box::new(restarted))),
        answer(Answer::Handoff(Box::new(handoff))),
        answer(Answer::Logs(LogLines { lines: vec!["l".into()], truncated: true })),
        answer(Answer::StdioServers(vec![StdioServer {
            name: "s".into(),
            pid: 1,
            ppid: 2,
            command: "c".into(),
            started_at: Timestamp(3),
            client: Some(client()),
            orphaned: true,
            stale: false,
        }])),
        answer(Answer::StdioRestarted(Box::new(StdioRestarted {
            status: StdioStatus::Partial,
            killed_other: 1,
            killed: vec![2],
            failed: vec![StdioFailure { pid: 3, error: "e".into() }],
            respawned: vec![Respawned { old_pid: 2, new_pid: 4, client: client() }],
            not_respawned: vec![NotRespawned { pid: 5, client: client() }],
            self_exit_scheduled: true,
            note: "n".into(),
            delivery: Some(6),
        }))),
        answer(Answer::Terminal(Terminal { socket: "s".into(), generation: 2 })),
        answer(Answer::McpConfig(McpConfig { file: "f".into(), content: "c".into() })),
        answer(Answer::Protected {
            processes: [Owner::Daemon, Owner::Bridge, Owner::Agent("a".into())].map(protected).into(),
            port: Some(1),
        }),
        answer(Answer::Done),
        answer(Answer::Admitted(Caller::Unknown)),
        ServerFrame { id: 8, body: ServerBody::Failed(failure) },
        ServerFrame { id: 9, body: ServerBody::Event(Event { revision: 1, agent: view() }) },
    ]));
}

#[test]
fn the_bytes_of_every_word_are_pinned() {
    use AgentState::{Exited, Failed, Running, Stopped, Stopping};
    use ErrorCode as Code;
    insta::assert_snapshot!(lines(vec![Stopped, Running, Stopping, Exited, Failed]), @r"
    Stopped 00
    Running 01
    Stopping 02
    Exited 03
    Failed 04
    ");
    insta::assert_snapshot!(lines(vec![
        ExitReason::Stop,
        ExitReason::Restart,
        ExitReason::Exited,
        ExitReason::SpawnFailed,
        ExitReason::Shutdown,
        ExitReason::RolledBack,
        ExitReason::Lost,
    ]), @r"
    Stop 00
    Restart 01
    Exited 02
    SpawnFailed 03
    Shutdown 04
    RolledBack 05
    Lost 06
    ");
    insta::assert_snapshot!(lines(vec![
        Code::UnknownAgent,
        Code::AlreadyRunning,
        Code::NotRunning,
        Code::ConfigInvalid,
        Code::SpawnFailed,
        Code::ExitedEarly,
        Code::StopIncomplete,
        Code::Superseded,
        Code::LaunchKnownBad,
        Code::NotAllowed,
        Code::TooManyRestarts,
        Code::Contaminated,
        Code::StaleDaemon,
        Code::UnknownRestartPath,
        Code::ShuttingDown,
        Code::DaemonUnavailable,
        Code::InvalidArgument,
        Code::Internal,
    ]));
    insta::assert_snapshot!(lines(vec![
        StdioStatus::Success,
        StdioStatus::Partial,
        StdioStatus::Failed,
        StdioStatus::DryRun,
    ]), @r"
    Success 00
    Partial 01
    Failed 02
    DryRun 03
    ");
}

#[test]
fn the_bytes_that_shims_speak_are_pinned() {
    let launch = ShimLaunch {
        name: "a".into(),
        generation: 2,
        launch_hash: 3,
        path: "p".into(),
        program: b"/x".to_vec(),
        argv: vec![b"x".to_vec()],
        environment: vec![(b"K".to_vec(), b"v".to_vec())],
        cwd: b"/".to_vec(),
        terminal: Some((40, 120)),
        log_file: b"/l".to_vec(),
        log_max_bytes: 4,
        log_keep: 5,
        keep_children: KeepChildren::Named(vec!["tmux".into()]),
    };
    let exit = ShimExit {
        code: Some(1),
        signal: Some(15),
        at: Timestamp(6),
        by_itself: true,
        forced: false,
        leftovers: 7,
    };
    let facts = ShimFacts {
        name: "a".into(),
        generation: 2,
        launch_hash: 3,
        shim_pid: 8,
        pid: 9,
        started_at: Timestamp(10),
        tty: true,
        log_file: b"/l".to_vec(),
        stopping: false,
        exit: Some(exit.clone()),
    };
    let keep_all = ShimLaunch { keep_children: KeepChildren::All, terminal: None, ..launch.clone() };
    insta::assert_snapshot!(lines(vec![
        ToShim::Launch(Box::new(launch)),
        ToShim::Launch(Box::new(keep_all)),
        ToShim::Describe,
        ToShim::Stop { path: "p".into(), signal: 15, grace_ms: 10_000 },
        ToShim::Acknowledge,
        ToShim::Attach { rows: 40, columns: 120 },
        ToShim::Input(b"i".to_vec()),
        ToShim::Resize { rows: 1, columns: 2 },
    ]));
    let left = vec![Leftover { pid: 11, command: "sh".into(), reason: "traced".into() }];
    insta::assert_snapshot!(lines(vec![
        FromShim::Facts(Box::new(facts)),
        FromShim::Started { pid: 9, at: Timestamp(10) },
        FromShim::SpawnFailed { step: "execute /x".into(), errno: 2 },
        FromShim::Exited(exit),
        FromShim::StopIncomplete { left },
        FromShim::Output(b"o".to_vec()),
        FromShim::Detached { reason: "r".into() },
        FromShim::Refused { reason: "r".into() },
    ]));
}
