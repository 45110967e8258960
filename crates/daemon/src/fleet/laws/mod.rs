//! The laws of the whole fleet, over random schedules of everything that can happen to it.
//!
//! ```text
//!  clients ──► Fleet ─► fleet task ─► agent tasks ─► Machine     the real ones
//!  config file ──────────┘   │ state.json, handoff/, run/          the real ones
//!                            └────── sockets ─────► shims          stand-ins: see `shim`
//! ```
//!
//! A schedule is a list of moves; between two of them the daemon takes as many steps as the schedule lets it, so
//! that anything may happen while something else is half done, the death of the daemon included. When it is
//! played out the world turns fair, and what was promised has to have come true.

mod judge;
mod kernel;
mod shim;
mod world;

use proptest::prelude::*;
use std::time::Duration;
use world::{Edit, Want, World};

#[derive(Debug, Clone)]
enum Move {
    Ask { agent: usize, want: Want, own: bool, wait: bool, request_id: Option<u8> },
    Edit(Edit),
    Deliver,
    Endpoint,
    TimePasses(u64),
    ShimStarts(usize),
    ShimFails(usize),
    ShimDies(usize),
    ShimFreezes(usize),
    TreeEnds(usize),
    EndsByItself(usize),
    StopIncomplete(usize),
    ExitIsWritten(usize),
    NoProcesses(bool),
    DaemonDies,
    DaemonStarts,
    ShutDown,
    Hurry,
    MakeWay,
    Stay,
}

/// A move, and how many steps the daemon takes before the next.
type Step = (Move, u32);

fn play(world: &mut World, step: &Move) {
    match *step {
        Move::Ask { agent, want, own, wait, request_id } => world.ask(agent, want, own, wait, request_id),
        Move::Edit(edit) => world.edit(edit),
        Move::Deliver => world.deliver(),
        Move::Endpoint => world.tell_endpoint(),
        Move::TimePasses(millis) => world.wait(Duration::from_millis(millis)),
        Move::ShimStarts(agent) => world.start_agent(agent),
        Move::ShimFails(agent) => world.strike(agent, shim::Shim::fail),
        Move::ShimDies(agent) => world.strike(agent, |shim| !shim.is_waiting() && shim.die()),
        Move::ShimFreezes(agent) => world.shims_of(agent).for_each(|shim| shim.is_frozen = true),
        Move::TreeEnds(agent) => world.end_tree(agent),
        Move::EndsByItself(agent) => world.strike(agent, |shim| shim.end(true)),
        Move::StopIncomplete(agent) => world.strike(agent, shim::Shim::give_up),
        Move::ExitIsWritten(agent) => world.shims_of(agent).for_each(shim::Shim::write_exit),
        Move::NoProcesses(full) => world.set_full(full),
        Move::DaemonDies => world.kill_daemon(),
        Move::DaemonStarts => world.start_daemon(),
        Move::ShutDown => world.shut_down(),
        Move::Hurry => world.hurry(),
        Move::MakeWay => world.make_way(),
        Move::Stay => world.stay(),
    }
}

fn any_move() -> impl Strategy<Value = Move> {
    let agent = || prop_oneof![3 => Just(0_usize), 1 => Just(1_usize)];
    let want = prop_oneof![2 => Just(Want::Start), 3 => Just(Want::Stop), 5 => Just(Want::Restart)];
    let edit = prop_oneof![
        2 => agent().prop_map(Edit::Change),
        1 => agent().prop_map(Edit::Remove),
        2 => agent().prop_map(Edit::Add),
        1 => Just(Edit::Break),
        2 => Just(Edit::Mend),
    ];
    let ask = (agent(), want, prop::bool::weighted(0.2), any::<bool>(), prop::option::weighted(0.3, 0_u8..2));
    prop_oneof![
        16 => ask.prop_map(|(agent, want, own, wait, request_id)| Move::Ask { agent, want, own, wait, request_id }),
        3 => edit.prop_map(Move::Edit),
        2 => Just(Move::Deliver),
        2 => Just(Move::Endpoint),
        5 => (1_u64..30_000).prop_map(Move::TimePasses),
        9 => agent().prop_map(Move::ShimStarts),
        1 => agent().prop_map(Move::ShimFails),
        1 => agent().prop_map(Move::ShimDies),
        1 => agent().prop_map(Move::ShimFreezes),
        6 => agent().prop_map(Move::TreeEnds),
        1 => agent().prop_map(Move::EndsByItself),
        1 => agent().prop_map(Move::StopIncomplete),
        1 => agent().prop_map(Move::ExitIsWritten),
        1 => prop::bool::weighted(0.3).prop_map(Move::NoProcesses),
        2 => Just(Move::DaemonDies),
        3 => Just(Move::DaemonStarts),
        1 => Just(Move::ShutDown),
        1 => Just(Move::Hurry),
        1 => Just(Move::MakeWay),
        1 => Just(Move::Stay),
    ]
}

fn schedule() -> impl Strategy<Value = Vec<Step>> {
    let steps = prop_oneof![1 => Just(0_u32), 2 => 1_u32..6, 3 => Just(30_u32)];
    prop::collection::vec((any_move(), steps), 1..40)
}

/// Plays a schedule out, and judges what has come of it.
fn check(schedule: &[Step]) {
    let mut world = World::new();
    for (step, steps) in schedule {
        world.tick();
        play(&mut world, step);
        world.run(*steps);
    }
    judge::judge(&mut world);
}

fn ask(want: Want) -> Move {
    Move::Ask { agent: 0, want, own: false, wait: false, request_id: None }
}

/// The shortest form of what the search found, each once against the law that it is named by.
#[test]
fn schedules_that_broke_a_law_once_break_none() {
    use Move::{DaemonDies, DaemonStarts, Edit as Edits, ShutDown, TimePasses};
    let first = || (TimePasses(1), 30);
    let table = [
        // What a daemon was about to start with itself was begun by the next one, after a clean end in between.
        vec![first(), (DaemonDies, 0), (Edits(Edit::Remove(1)), 0), (DaemonStarts, 1), (ShutDown, 0)],
        // A restart that came while the process was being started took the notes of the one before away.
        vec![first(), (ask(Want::Restart), 3), (ask(Want::Restart), 3), (DaemonDies, 0)],
        vec![first(), (ask(Want::Restart), 0), (ask(Want::Restart), 30)],
        // So did a start.
        vec![first(), (ask(Want::Restart), 0), (ask(Want::Start), 30), (DaemonDies, 0)],
        vec![first(), (ask(Want::Restart), 30), (DaemonDies, 0), (DaemonStarts, 5), (ask(Want::Start), 0)],
        vec![first(), (ask(Want::Start), 0), (ask(Want::Restart), 4), (DaemonDies, 0)],
        vec![
            first(),
            (ask(Want::Restart), 30),
            (ask(Want::Start), 0),
            (ask(Want::Restart), 1),
            (DaemonDies, 0),
        ],
    ];
    for schedule in table {
        check(&schedule);
    }
}

/// The daemon had written down that it starts an agent which ran already, when it died.
#[test]
fn a_start_of_a_running_agent_is_no_restart_by_the_next_daemon() {
    let mut world = World::new();
    let play_all = |world: &mut World, steps: &[Step]| {
        for (step, steps) in steps {
            world.tick();
            play(world, step);
            world.run(*steps);
        }
    };
    play_all(&mut world, &[(Move::TimePasses(1), 30), (ask(Want::Start), 30), (Move::ShimStarts(0), 30)]);
    play_all(&mut world, &[(Move::TimePasses(300), 30)]);
    let running = world.process(0);
    assert!(running.is_some());
    play_all(&mut world, &[(ask(Want::Start), 1), (Move::DaemonDies, 0)]);
    judge::judge(&mut world);
    assert_eq!(world.process(0), running);
}

proptest! {
    // More cases than these with PROPTEST_CASES; never fewer.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(500), ..ProptestConfig::default() })]

    #[test]
    fn the_laws_hold_in_every_order_of_events(schedule in schedule()) {
        check(&schedule);
    }
}
