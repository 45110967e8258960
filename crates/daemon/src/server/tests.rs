//! The real server on a real socket, with a fleet that has no agents.

use super::{Context, Identification, Room, Wish, Word, serve};
use crate::bridge::{self, Beginning};
use crate::children::Children;
use crate::fleet::{self, FleetSetup};
use crate::governance::{Gate, Journal};
use crate::last_good::FirstConfig;
use crate::program::Program;
use mcp_restart_config::{Environment, Secret, Strictness, lookup};
use mcp_restart_process::send_with_descriptor;
use mcp_restart_protocol::answer::{Answer, Caller, ErrorCode, ServerFrame};
use mcp_restart_protocol::client::{Client, ClientError, greet};
use mcp_restart_protocol::codec::{take_frame, to_frame};
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, PROTOCOL, Verb};
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

const TOKEN: &str = "the operator's";

/// A server of its own for each test, in a state dir of its own.
struct Served {
    folder: TempDir,
    socket: PathBuf,
    wishes: mpsc::Receiver<Wish>,
}

impl Served {
    async fn start() -> Self {
        Self::with(Room::within(1024)).await
    }

    async fn with(room: Room) -> Self {
        let folder = TempDir::new().unwrap();
        let config_file = folder.path().join("config.json");
        fs::write(&config_file, "{}").unwrap();
        let environment = Environment { cwd: folder.path().to_owned(), ..Environment::default() };
        let config = mcp_restart_config::load(&config_file, &environment).unwrap();
        let state_dir = folder.path().to_owned();
        let socket = lookup::socket(&state_dir);
        let listener = UnixListener::bind(&socket).unwrap();
        let children = Children::start(1024).unwrap();
        let setup = FleetSetup {
            first: FirstConfig { config, text: Ok("{}".to_owned()) },
            environment,
            state_dir: state_dir.clone(),
            socket: socket.clone(),
            children: children.clone(),
        };
        let fleet = fleet::start(setup).await;
        let journal = Journal::start(&state_dir, fleet.clone());
        let bridge = bridge::keep(
            Beginning::Elsewhere,
            bridge::Setup {
                fleet: fleet.clone(),
                children,
                journal: journal.clone(),
                state_dir: state_dir.clone(),
                address: "127.0.0.1:4310".parse().unwrap(),
                program: PathBuf::new(),
                args: Vec::new(),
                environment: Vec::new(),
            },
        );
        let (wishing, wishes) = mpsc::channel(1);
        let context = Context {
            identification: Identification::new(fleet.clone(), Some(Secret::new(TOKEN))),
            gate: Gate { stale: Strictness::Warn, contamination: Strictness::Warn },
            journal,
            fleet,
            bridge,
            program: Program::at(config_file.clone()).unwrap(),
            config_file,
            state_dir,
            started: Instant::now(),
            manager: None,
            wishes: wishing,
            under_way: TaskTracker::new(),
        };
        let (give, listeners) = mpsc::channel(1);
        give.try_send(listener).unwrap();
        tokio::spawn(serve(listeners, room, Arc::new(context)));
        Self { folder, socket, wishes }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.socket, Credential::Peer).await.unwrap()
    }

    /// Who the daemon takes us for.
    async fn caller(&self, credential: Credential) -> Result<Caller, ErrorCode> {
        let mut client = Client::connect(&self.socket, credential).await.unwrap();
        match client.ask(Request::Status).await {
            Ok(Answer::Status(status)) => Ok(status.caller),
            Err(ClientError::Refused(failure)) => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    async fn small_verb(&self, verb: Verb, text: Option<Value>) -> (Value, UnixStream) {
        let (mut stream, _) = greet(&self.socket, verb).await.unwrap();
        if let Some(text) = text {
            stream.write_all(&frame(&text)).await.unwrap();
        }
        (read(&mut stream).await, stream)
    }
}

async fn read(stream: &mut UnixStream) -> Value {
    let length = stream.read_u32_le().await.unwrap();
    let mut answer = vec![0; length.try_into().unwrap()];
    stream.read_exact(&mut answer).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

fn frame(text: &Value) -> Vec<u8> {
    let text = text.to_string();
    let mut frame = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(text.as_bytes());
    frame
}

async fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn a_stranger_to_the_protocol_is_told_nothing() {
    let served = Served::start().await;
    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    stream.write_all(&[b'G'; HELLO_LEN]).await.unwrap();
    assert_eq!(rest(stream).await, b"");
}

#[tokio::test]
async fn a_client_of_another_protocol_number_gets_our_hello_and_no_more() {
    let served = Served::start().await;
    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    let theirs = Hello { protocol: PROTOCOL + 1, verb: Verb::Talk, version: "99.0.0".into() };
    stream.write_all(&theirs.to_bytes()).await.unwrap();
    assert_eq!(rest(stream).await, Hello::ours(Verb::Talk).to_bytes());
}

#[tokio::test]
async fn a_client_that_sends_garbage_loses_its_own_connection_alone() {
    let served = Served::start().await;
    let mut bystander = served.client().await;
    for garbage in [&[0xff; 64][..], &[3, 0, 0, 0, 0xff, 0xff, 0xff], &u32::MAX.to_le_bytes()] {
        let (mut stream, _) = greet(&served.socket, Verb::Talk).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        assert_eq!(rest(stream).await, b"");
        assert_eq!(bystander.ask(Request::List { all: true }).await.unwrap(), Answer::Agents(Vec::new()));
    }
}

#[tokio::test]
async fn a_client_that_stops_in_mid_frame_holds_up_nobody() {
    let served = Served::start().await;
    let (mut stalled, _) = greet(&served.socket, Verb::Talk).await.unwrap();
    stalled.write_all(&[200, 0, 0, 0, 1]).await.unwrap();
    let _silent = UnixStream::connect(&served.socket).await.unwrap();
    served.client().await.ask(Request::List { all: false }).await.unwrap();
}

#[tokio::test]
async fn a_client_that_closed_its_sending_side_still_gets_its_answers() {
    let served = Served::start().await;
    let (mut stream, _) = greet(&served.socket, Verb::Talk).await.unwrap();
    let request =
        ClientFrame { id: 7, credential: Credential::Peer, allows_stale: false, request: Request::Status };
    stream.write_all(&to_frame(&request).unwrap()).await.unwrap();
    stream.shutdown().await.unwrap();
    let answer: ServerFrame = take_frame(&mut rest(stream).await).unwrap().unwrap();
    assert_eq!(answer.id, 7);
}

#[tokio::test]
async fn who_asks_is_found_by_token_else_by_process() {
    let served = Served::start().await;
    let own = std::process::id();
    assert_eq!(served.caller(Credential::Peer).await, Ok(Caller::LocalUser { pid: Some(own) }));
    assert_eq!(served.caller(Credential::Token(TOKEN.into())).await, Ok(Caller::Operator));
    for wrong in ["", "the operator'", "mra_0123"] {
        assert_eq!(served.caller(Credential::Token(wrong.into())).await, Err(ErrorCode::NotAllowed));
    }
    let at = "127.0.0.1:4310".parse().unwrap();
    let http = |token: Option<&str>| Credential::Http { token: token.map(Into::into), peer: at, local: at };
    assert_eq!(served.caller(http(Some(TOKEN))).await, Ok(Caller::Operator));
    assert_eq!(served.caller(http(None)).await, Err(ErrorCode::NotAllowed));
}

#[tokio::test]
async fn a_lifecycle_request_on_an_unregistered_path_is_refused() {
    let served = Served::start().await;
    let request = Request::Start { path: "pkill".into(), name: "claude".into(), force: false, wait: true };
    match served.client().await.ask(request).await {
        Err(ClientError::Refused(failure)) => assert_eq!(failure.code, ErrorCode::UnknownRestartPath),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_was_replaced_on_disk_shows_as_stale() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let Ok(Answer::Status(status)) = client.ask(Request::Status).await else { panic!("no status") };
    assert_eq!(status.stale, None);
    fs::remove_file(served.folder.path().join("config.json")).unwrap();
    let Ok(Answer::Status(status)) = client.ask(Request::Status).await else { panic!("no status") };
    assert!(status.stale.unwrap().contains("mcp-restartctl upgrade"));
}

#[tokio::test]
async fn a_shutdown_is_accepted_on_its_own_path_only() {
    let mut served = Served::start().await;
    let (refused, _) = served.small_verb(Verb::Shutdown, Some(json!({ "path": "pkill" }))).await;
    assert_eq!(refused["accepted"], false);
    assert_eq!(refused["error"]["code"], "unknown_restart_path");
    let (accepted, stream) = served.small_verb(Verb::Shutdown, Some(json!({ "path": "ctl_down" }))).await;
    assert_eq!(accepted, json!({ "accepted": true, "pid": std::process::id() }));
    assert!(matches!(served.wishes.recv().await, Some(Wish::End(RestartPath::CtlDown))));
    // Open for as long as the daemon lives.
    assert!(
        matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    );
}

#[tokio::test]
async fn a_daemon_makes_way_on_its_own_path_at_the_second_word_and_for_as_long_as_whoever_asks_is_there() {
    let mut served = Served::start().await;
    let (refused, _) = served.small_verb(Verb::Upgrade, Some(json!({ "path": "ctl_down" }))).await;
    assert_eq!(refused["error"]["code"], "unknown_restart_path");
    let (offer, mut stream) = served
        .small_verb(Verb::Upgrade, Some(json!({ "path": "ctl_upgrade", "from": "a newer version" })))
        .await;
    assert_eq!(offer["pid"], std::process::id());
    assert_eq!(offer["manager"], Value::Null);
    assert!(offer["launch"]["environment"].is_array());
    assert!(served.wishes.is_empty());
    stream.write_all(&frame(&json!({ "leave": true }))).await.unwrap();
    let Some(Wish::MakeWay(asker)) = served.wishes.recv().await else { panic!("no wish") };
    asker.send(Word::Leaving).await.unwrap();
    assert_eq!(read(&mut stream).await, json!({ "leaving": true }));
    assert!(!asker.is_closed());
    drop(stream);
    asker.closed().await;
}

#[tokio::test]
async fn a_daemon_that_ends_makes_way_for_nobody() {
    let mut served = Served::start().await;
    let ask = json!({ "path": "ctl_upgrade" });
    let (_, mut stream) = served.small_verb(Verb::Upgrade, Some(ask)).await;
    served.wishes.close();
    stream.write_all(&frame(&json!({ "leave": true }))).await.unwrap();
    assert_eq!(read(&mut stream).await["error"]["code"], "shutting_down");
}

#[tokio::test]
async fn the_endpoint_is_where_the_bridge_announces_it_for_as_long_as_it_stays() {
    let served = Served::start().await;
    assert_eq!(served.small_verb(Verb::Status, None).await.0["url"], Value::Null);
    let (bridge, _) = greet(&served.socket, Verb::Bridge).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = json!({ "version": "1", "url": "http://127.0.0.1:9/mcp", "protocol": PROTOCOL, "pid": 1 });
    send_with_descriptor(&bridge, &frame(&text), listener.as_fd()).unwrap();
    let url_becomes = async |url: Value| {
        while served.small_verb(Verb::Status, None).await.0["url"] != url {
            tokio::task::yield_now().await;
        }
    };
    url_becomes(json!("http://127.0.0.1:9/mcp")).await;
    drop(bridge);
    url_becomes(Value::Null).await;
}

#[tokio::test]
async fn a_client_that_opens_connections_without_end_loses_its_oldest_idle_ones() {
    let served = Served::with(Room { total: 64, per_process: 4 }).await;
    let mut silent = UnixStream::connect(&served.socket).await.unwrap();
    let (mut half, _) = greet(&served.socket, Verb::Talk).await.unwrap();
    half.write_all(&[200, 0, 0, 0, 1]).await.unwrap();
    let mut done = served.client().await;
    done.ask(Request::Status).await.unwrap();
    let mut newcomers = Vec::new();
    for _ in 0..20 {
        let mut newcomer = served.client().await;
        newcomer.ask(Request::Status).await.unwrap();
        newcomers.push(newcomer);
    }
    assert!(is_closed(&mut silent).await && is_closed(&mut half).await);
    assert!(matches!(done.ask(Request::Status).await, Err(ClientError::Closed)));
}

#[tokio::test]
async fn who_waits_for_events_does_not_have_to_go_for_newcomers() {
    let served = Served::with(Room { total: 64, per_process: 2 }).await;
    let mut subscribers = [served.client().await, served.client().await];
    for subscriber in &mut subscribers {
        subscriber.send(Request::Subscribe).await.unwrap();
        subscriber.ask(Request::Status).await.unwrap();
    }
    let mut newcomer = UnixStream::connect(&served.socket).await.unwrap();
    assert!(is_closed(&mut newcomer).await);
    for subscriber in &mut subscribers {
        subscriber.ask(Request::Status).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_read_no_further() {
    let served = Served::start().await;
    let mut bystander = served.client().await;
    let (stream, _) = greet(&served.socket, Verb::Talk).await.unwrap();
    let request =
        ClientFrame { id: 7, credential: Credential::Peer, allows_stale: false, request: Request::Status };
    let requests = to_frame(&request).unwrap().repeat(100);
    let mut taken = 0;
    loop {
        // Asked twice, the daemon has had the time to read whatever it wants to.
        bystander.ask(Request::Status).await.unwrap();
        bystander.ask(Request::Status).await.unwrap();
        match stream.try_write(&requests[taken % requests.len()..]) {
            Ok(some) => taken += some,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 64 * 1024 * 1024, "the daemon reads on and on");
    }
}

/// Whether the daemon closes a connection without a word.
async fn is_closed(stream: &mut UnixStream) -> bool {
    matches!(stream.read(&mut [0]).await, Ok(0) | Err(_))
}
