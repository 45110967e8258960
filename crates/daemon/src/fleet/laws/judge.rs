//! What has to be true when a schedule is played out.

use super::shim::Shim;
use super::world::{AGENTS, Answer, Asked, HEARING, Want, World};
use mcp_restart_protocol::agent::AgentState;
use mcp_restart_protocol::answer::ErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// So often everybody gets a turn before something counts as stuck: more than any limit of the daemon lasts.
const TURNS: usize = 60;
const TURN: Duration = Duration::from_millis(1_500);

/// Lets the world turn fair, and checks every law.
pub(super) fn judge(world: &mut World) {
    settle(world);
    if world.is_closing() {
        // Its end, and the next daemon's beginning.
        check_answers(world);
        assert!(world.has_closed(), "the daemon never ends: {world:#?}");
        for (agent, name) in AGENTS.iter().enumerate() {
            assert_eq!(world.process(agent), None, "{name} survives the shutdown");
        }
        world.end_daemon();
        settle(world);
    }
    check_answers(world);
    check_wants(world);
    check_reality(world);
    let before: Vec<_> = (0..AGENTS.len()).map(|agent| world.process(agent)).collect();
    world.tick();
    world.kill_daemon();
    settle(world);
    check_reality(world);
    let after: Vec<_> = (0..AGENTS.len()).map(|agent| world.process(agent)).collect();
    assert_eq!(before, after, "a daemon that dies when nothing is under way changes something: {world:#?}");
}

/// Everybody does what is expected, until nothing more is.
fn settle(world: &mut World) {
    world.set_full(false);
    world.stay();
    for _ in 0..TURNS {
        world.tick();
        world.start_daemon();
        world.shims.iter_mut().for_each(|shim| shim.is_frozen = false);
        world.run(HEARING);
        world.tell_endpoint();
        world.deliver();
        for agent in 0..AGENTS.len() {
            world.start_agent(agent);
            world.end_tree(agent);
            world.shims_of(agent).for_each(Shim::write_exit);
        }
        world.run(HEARING);
        world.wait(TURN);
        world.run(HEARING);
        if is_quiet(world) {
            return;
        }
    }
    panic!("something never comes to its end: {world:#?}\n{:?}", world.intents());
}

fn is_quiet(world: &mut World) -> bool {
    world.serves()
        && world.asked.iter().all(|asked| asked.answer.is_some())
        && world.intents().is_empty()
        && world.shims.iter().all(|shim| shim.process().is_some() && !shim.is_stopping())
        && (!world.is_closing() || world.has_closed())
}

fn check_answers(world: &World) {
    for asked in &world.asked {
        if asked.while_closing {
            let refused = Answer::Refused(ErrorCode::ShuttingDown);
            let right = asked.answer.as_ref().is_some_and(|answer| [refused, Answer::Lost].contains(answer));
            assert!(right, "taken during the shutdown: {asked:?}");
        }
        assert!(
            !matches!(asked.answer, Some(Answer::Refused(ErrorCode::Internal))),
            "a fault of ours: {asked:?}"
        );
    }
    let mut first_answers = BTreeMap::new();
    for asked in &world.asked {
        let done = matches!(asked.answer, Some(Answer::Done { is_replayed: false, .. }));
        if let (Some(id), Some(entry), true) = (asked.request_id, asked.entry, done) {
            let earlier = first_answers.insert((asked.agent, id, entry), asked);
            assert!(earlier.is_none(), "carried out twice: {earlier:?}, {asked:?}");
        }
    }
}

/// The last request that was taken is what holds, and no note of a restart that was taken is lost.
fn check_wants(world: &World) {
    for (agent, name) in AGENTS.iter().enumerate() {
        if let Some(asked) = decisive(world, agent) {
            let lives = world.process(agent).is_some();
            assert_eq!(lives, asked.want != Want::Stop, "{name} after {asked:?}: {world:#?}");
        }
        for asked in world.asked.iter().filter(|asked| asked.agent == agent) {
            let taken = matches!(asked.answer, Some(Answer::Done { is_replayed: false, .. }));
            let Some(note) = asked.note.as_ref().filter(|_| taken && !is_overtaken(world, asked)) else {
                continue;
            };
            let fate = &world.fates[agent];
            let found = fate.notes.contains(note) || fate.present.contains(note);
            assert!(found, "the note of {asked:?} is lost: {world:#?}");
        }
    }
}

/// The last request that an agent's state has to follow; none if something else has happened to it since.
fn decisive(world: &World, agent: usize) -> Option<&Asked> {
    let mut asked = world.asked.iter().rev().filter(|asked| asked.agent == agent);
    let last = asked.find(|asked| match &asked.answer {
        Some(Answer::Done { is_replayed, .. }) => !is_replayed,
        Some(Answer::Refused(code)) => matches!(
            code,
            ErrorCode::NotRunning
                | ErrorCode::Superseded
                | ErrorCode::ExitedEarly
                | ErrorCode::StopIncomplete
        ),
        _ => true,
    });
    let last = last.filter(|asked| !repeats_a_refused_one(world, asked))?;
    (last.answer != Some(Answer::Lost) && !is_disturbed(world, last)).then_some(last)
}

/// One that comes again with the id of a request that was refused since is that one once more.
fn repeats_a_refused_one(world: &World, asked: &Asked) -> bool {
    let same = |earlier: &Asked| (earlier.agent, earlier.request_id) == (asked.agent, asked.request_id);
    let refused = matches!(asked.answer, Some(Answer::Refused(_)));
    refused && asked.request_id.is_some() && world.asked.iter().any(|it| it.at < asked.at && same(it))
}

/// Whether something happened since that makes the request mean nothing any more.
fn is_disturbed(world: &World, asked: &Asked) -> bool {
    let fate = &world.fates[asked.agent];
    // A launch that the next daemon takes up needs its entry.
    let given_up = world.last_death >= asked.at && fate.no_entry >= asked.at;
    fate.fault >= asked.at || given_up || world.last_closing >= asked.at || world.last_clean_start >= asked.at
}

/// Whether the notes of this restart need not have come to anybody.
fn is_overtaken(world: &World, asked: &Asked) -> bool {
    let stopped =
        |later: &Asked| later.agent == asked.agent && later.want == Want::Stop && later.at > asked.at;
    is_disturbed(world, asked) || world.asked.iter().any(stopped)
}

/// What the daemon says is what is, and nothing is under way.
fn check_reality(world: &mut World) {
    let views = world.views();
    for (agent, name) in AGENTS.iter().enumerate() {
        let process = world.process(agent);
        let view = views.iter().find(|view| view.name == *name);
        let shown = view.and_then(|view| Some((view.pid?, view.generation)));
        assert_eq!(shown, process, "{name} is shown as {view:?}: {world:#?}");
        if let Some(view) = view {
            let runs = view.state == AgentState::Running;
            assert_eq!(runs, process.is_some(), "{name} is shown as {view:?}");
            assert!(view.generation >= world.fates[agent].generation, "a generation went down: {view:?}");
        }
    }
    assert_eq!(world.intents(), BTreeMap::new());
}
