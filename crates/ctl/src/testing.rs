//! What the tests of this crate share: a world in a temporary folder, and a daemon that says what it is told.

use crate::arguments::{self, Arguments, Global};
use crate::context::Context;
use crate::problem::Exit;
use crate::screen::Screen;
use clap::Parser;
use mcp_restart_config::{Environment, lookup};
use mcp_restart_protocol::agent::{AgentState, AgentView};
use mcp_restart_protocol::answer::{Answer, Caller, Failure, ServerBody, ServerFrame, ServerStatus};
use mcp_restart_protocol::codec::{take_frame, to_frame};
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, Verb};
use mcp_restart_protocol::request::{ClientFrame, Request};
use std::cell::RefCell;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use tempfile::TempDir;

/// An agent as the daemon shows it.
pub(crate) fn view(name: &str, state: AgentState, generation: u64) -> AgentView {
    let alive = matches!(state, AgentState::Running | AgentState::Stopping);
    AgentView {
        name: name.to_owned(),
        kind: "generic".into(),
        state,
        pid: alive.then_some(4242),
        generation,
        started_at: None,
        uptime_ms: alive.then_some(61_234),
        autostart: false,
        tty: false,
        session_id: None,
        connected_at: None,
        config_changed: false,
        listed: true,
        log_file: format!("/logs/{name}.log"),
        last_exit: None,
    }
}

/// A daemon that serves `config_file` and has these agents.
pub(crate) fn status(config_file: &Path, agents: Vec<AgentView>) -> ServerStatus {
    ServerStatus {
        version: "0.1.0".into(),
        pid: 4141,
        url: Some("http://127.0.0.1:4310/mcp".into()),
        uptime_ms: 1000,
        config_file: config_file.display().to_string(),
        config_error: None,
        endpoint_error: None,
        state_dir: "/state".into(),
        state_error: None,
        stale: None,
        contaminated: None,
        pending_config: Vec::new(),
        adopted: Vec::new(),
        recovered: Vec::new(),
        need_restart: Vec::new(),
        stale_shims: Vec::new(),
        agents,
        unlisted: Vec::new(),
        caller: Caller::LocalUser { pid: None },
    }
}

/// A home with a working directory in it.
pub(crate) struct World {
    folder: TempDir,
    /// What the environment would say.
    pub(crate) environment: Environment,
    /// The token that an agent would have.
    pub(crate) agent_token: Option<String>,
}

impl World {
    /// An empty home.
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let home = folder.path().to_owned();
        let environment = Environment { home: Some(home.clone()), cwd: home, ..Environment::default() };
        Self { folder, environment, agent_token: None }
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A context in this world.
    pub(crate) fn context(&self, flags: Global, output: &Output) -> Context {
        let screen = Screen::on(Box::new(output.output.clone()), Box::new(output.errors.clone()), &flags);
        Context::new(flags, screen, self.environment.clone(), self.agent_token.clone())
    }

    /// Runs a command line in this world: exit code, standard output, standard error.
    pub(crate) fn run(&self, arguments: &[&str]) -> (Exit, String, String) {
        self.run_on(tokio::runtime::Builder::new_current_thread().enable_all(), arguments)
    }

    /// The same where nobody answers: the clock jumps to whatever is due next.
    pub(crate) fn run_without_waiting(&self, arguments: &[&str]) -> (Exit, String, String) {
        self.run_on(tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true), arguments)
    }

    fn run_on(&self, runtime: &mut tokio::runtime::Builder, arguments: &[&str]) -> (Exit, String, String) {
        let output = Output::default();
        let arguments = match Arguments::try_parse_from([&["mcp-restartctl"], arguments].concat()) {
            Ok(arguments) => arguments,
            Err(usage) => {
                let context = self.context(Global::default(), &output);
                let exit = context.screen.end(&arguments::problem(&usage));
                return (exit, output.output.text(), output.errors());
            }
        };
        let context = self.context(arguments.global, &output);
        let exit = match runtime.build().unwrap().block_on(crate::commands::run(&context, arguments.command))
        {
            Ok(exit) => exit,
            Err(problem) => context.screen.end(&problem),
        };
        (exit, output.output.text(), output.errors())
    }

    /// A daemon in the default state dir that serves the config in the working directory, and what it is asked.
    pub(crate) fn daemon(
        &self,
        answer: impl Fn(&Request) -> Result<Answer, Failure> + Send + Sync + 'static,
    ) -> mpsc::Receiver<ClientFrame> {
        let state_dir = lookup::state_dir(None, None, &self.environment).unwrap();
        fs::create_dir_all(&state_dir).unwrap();
        let listener = UnixListener::bind(lookup::socket(&state_dir)).unwrap();
        let (sender, asked) = mpsc::channel();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (answer, sender) = (Arc::clone(&answer), sender.clone());
                // The client leaves when it has its answer.
                std::thread::spawn(move || drop(serve(stream, &*answer, &sender)));
            }
        });
        asked
    }

    /// A daemon in the default state dir that was stopped: whoever connects hears nothing.
    pub(crate) fn stopped_daemon(&self) -> UnixListener {
        let state_dir = lookup::state_dir(None, None, &self.environment).unwrap();
        fs::create_dir_all(&state_dir).unwrap();
        UnixListener::bind(lookup::socket(&state_dir)).unwrap()
    }

    /// A daemon in the default state dir that greets like this and goes.
    pub(crate) fn daemon_of_another_version(&self, hello: Hello) {
        let state_dir = lookup::state_dir(None, None, &self.environment).unwrap();
        fs::create_dir_all(&state_dir).unwrap();
        let listener = UnixListener::bind(lookup::socket(&state_dir)).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
                stream.write_all(&hello.to_bytes()).unwrap();
            }
        });
    }
}

fn serve(
    mut stream: UnixStream,
    answer: &impl Fn(&Request) -> Result<Answer, Failure>,
    asked: &mpsc::Sender<ClientFrame>,
) -> io::Result<()> {
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello)?;
    let verb = Hello::from_bytes(&hello).map_or(Verb::Talk, |hello| hello.verb);
    stream.write_all(&Hello::ours(verb).to_bytes())?;
    let (mut buffer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        while let Some(frame) = take_frame::<ClientFrame>(&mut buffer).map_err(io::Error::other)? {
            let body = match answer(&frame.request) {
                Ok(answer) => ServerBody::Answer(answer),
                Err(failure) => ServerBody::Failed(failure),
            };
            let reply = ServerFrame { id: frame.id, body };
            // A test that does not care has dropped its end.
            let _ = asked.send(frame);
            stream.write_all(&to_frame(&reply).map_err(io::Error::other)?)?;
        }
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            length => buffer.extend_from_slice(&piece[..length]),
        }
    }
}

/// What a command printed.
#[derive(Clone, Default)]
pub(crate) struct Output {
    output: Buffer,
    errors: Buffer,
}

impl Output {
    /// What it wrote to standard error.
    pub(crate) fn errors(&self) -> String {
        self.errors.text()
    }
}

#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
