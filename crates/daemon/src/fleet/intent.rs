//! What was begun for an agent, written down before the first step, so that a daemon that dies in the middle
//! of it leaves the next one enough to finish.
//!
//! ```text
//!  request ─► intent in state.json ─► order to the agent task ─► … ─► done: intent cleared
//!                    │ the daemon dies
//!                    ▼
//!  next daemon: intent × what it finds ─► finish ─► Done | Stop | Launch
//! ```

use super::repetition::ReplayKey;
use mcp_restart_protocol::agent::Resume;
use mcp_restart_protocol::paths::RestartPath;
use mcp_restart_protocol::timestamp::Timestamp;
use mcp_restart_supervisor::UnderWay;
use serde::{Deserialize, Serialize};

/// What an agent is on its way to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Intent {
    pub goal: Goal,
    /// Of a stop, the number of the last launch that is to be gone; else that of the launch to come.
    pub generation: u64,
    /// Id of the restart path that was taken.
    pub path: String,
    /// When it was begun.
    pub at: Timestamp,
    /// The requests with an id that are answered when it is done.
    #[serde(default)]
    pub requests: Vec<ReplayKey>,
    /// Of a restart, what to do with the conversation, if not what the config says.
    #[serde(default)]
    pub resume: Option<Resume>,
}

/// How an agent is to be in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Goal {
    /// Not running.
    Stop,
    /// Running, by a plain launch.
    Start,
    /// Running, by a launch that knows of its predecessor.
    Restart,
}

/// The process of an agent that a daemon finds when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Living {
    pub generation: u64,
    /// Its stop has begun.
    pub stopping: bool,
}

/// What is left to do of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// Nothing: it had come to its end.
    Done,
    /// End the process.
    Stop,
    /// Launch, once the process that may be there is gone. If the launch is refused, that process is left as
    /// it is, which one whose stop has begun cannot be.
    Launch { stop_begun: bool },
}

impl Intent {
    /// A stop of everything up to this launch.
    pub(super) fn stop(path: RestartPath, generation: u64) -> Self {
        Self::new(Goal::Stop, path, generation)
    }

    /// A launch with this number.
    pub(super) fn launch(goal: Goal, path: RestartPath, generation: u64) -> Self {
        Self::new(goal, path, generation)
    }

    fn new(goal: Goal, path: RestartPath, generation: u64) -> Self {
        let (path, at) = (path.id().to_owned(), Timestamp::now());
        Self { goal, generation, path, at, requests: Vec::new(), resume: None }
    }

    /// The intent when this one comes while another is under way. A launch that is under way is joined, with
    /// everybody who waits for it; a stop takes the place of anything.
    #[must_use]
    pub(super) fn after(mut self, earlier: Option<&Self>) -> Self {
        if let Some(earlier) = earlier.filter(|earlier| earlier.goal != Goal::Stop) {
            // A start adds no launch to the one that is under way.
            let own = if self.goal == Goal::Start { 0 } else { self.generation };
            self.generation = own.max(earlier.generation);
            if self.goal != Goal::Stop {
                // Whoever starts what is being restarted takes nothing away from the restart.
                self.goal = earlier.goal.max(self.goal);
                self.resume = self.resume.or(earlier.resume);
                self.requests.splice(0..0, earlier.requests.iter().cloned());
            }
        }
        self
    }

    /// Brings it to what the agent's machine says, which alone knows what became of the requests.
    #[must_use]
    pub(super) fn following(mut self, under_way: UnderWay) -> Self {
        match under_way {
            UnderWay::Stop { generation } => {
                self.goal = Goal::Stop;
                self.generation = generation;
                self.requests.clear();
            }
            UnderWay::Launch { generation } => {
                if self.goal == Goal::Stop {
                    self.goal = Goal::Start;
                }
                self.generation = generation;
            }
        }
        self
    }

    /// The path that was taken. One that this version does not know is taken for the command line's.
    pub(super) fn path(&self) -> RestartPath {
        RestartPath::from_id(&self.path).unwrap_or(match self.goal {
            Goal::Stop => RestartPath::CtlStop,
            Goal::Start => RestartPath::CtlStart,
            Goal::Restart => RestartPath::CtlRestart,
        })
    }

    /// What is left to do, given what lives now and the number of the process whose shim has left word of its
    /// end, if one has. That a daemon ordered a launch is no word of it: the shim that hears of it too late
    /// launches nothing.
    pub(super) fn finish(&self, living: Option<Living>, ended: Option<u64>) -> Finish {
        match (self.goal, living) {
            (Goal::Stop, Some(living)) if living.generation <= self.generation => Finish::Stop,
            (Goal::Stop, _) => Finish::Done,
            (_, Some(living)) if living.generation >= self.generation => Finish::Done,
            // It was found running when it was asked for.
            (Goal::Start, Some(living)) if !living.stopping => Finish::Done,
            (_, Some(living)) => Finish::Launch { stop_begun: living.stopping },
            // It was launched, and has ended since.
            (_, None) if ended >= Some(self.generation) => Finish::Done,
            (_, None) => Finish::Launch { stop_begun: false },
        }
    }

    /// In a person's words, after "the".
    pub(super) fn what(&self) -> &'static str {
        match self.goal {
            Goal::Stop => "stop",
            Goal::Start => "start",
            Goal::Restart => "restart",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: [Goal; 3] = [Goal::Stop, Goal::Start, Goal::Restart];

    fn intent(goal: Goal, generation: u64) -> Intent {
        Intent::new(goal, RestartPath::CtlRestart, generation)
    }

    #[test]
    fn what_is_left_to_do_depends_on_what_lives() {
        let living = |generation, stopping| Some(Living { generation, stopping });
        let table = [
            // Goal and its number, what lives, what has ended, what is left to do.
            (Goal::Stop, 3, living(3, false), None, Finish::Stop),
            (Goal::Stop, 3, living(3, true), None, Finish::Stop),
            (Goal::Stop, 3, living(4, false), None, Finish::Done),
            (Goal::Stop, 3, None, Some(3), Finish::Done),
            (Goal::Stop, 3, None, None, Finish::Done),
            (Goal::Restart, 4, living(3, false), None, Finish::Launch { stop_begun: false }),
            (Goal::Restart, 4, living(3, true), None, Finish::Launch { stop_begun: true }),
            (Goal::Restart, 4, living(4, false), None, Finish::Done),
            (Goal::Restart, 4, None, Some(3), Finish::Launch { stop_begun: false }),
            (Goal::Restart, 4, None, Some(4), Finish::Done),
            (Goal::Restart, 4, None, None, Finish::Launch { stop_begun: false }),
            (Goal::Start, 1, None, None, Finish::Launch { stop_begun: false }),
            (Goal::Start, 1, living(1, false), None, Finish::Done),
            (Goal::Start, 2, living(1, false), None, Finish::Done),
            (Goal::Start, 2, living(1, true), None, Finish::Launch { stop_begun: true }),
            (Goal::Start, 1, None, Some(1), Finish::Done),
        ];
        for (goal, generation, living, ended, left) in table {
            let found = intent(goal, generation).finish(living, ended);
            assert_eq!(found, left, "{goal:?} {generation}, {living:?}, ended {ended:?}");
        }
    }

    /// Every intent against everything that can be found, small numbers being all that matters.
    #[test]
    fn finishing_comes_to_the_goal_and_never_to_two_processes_or_a_second_restart() {
        for goal in GOALS {
            for (number, last) in (1..4).flat_map(|number| (1..5).map(move |last| (number, last))) {
                let living = |stopping| (Some(Living { generation: last, stopping }), None);
                for (living, ended) in [living(false), living(true), (None, Some(last)), (None, None)] {
                    let launched = last >= number && (living.is_some() || ended.is_some());
                    match intent(goal, number).finish(living, ended) {
                        Finish::Stop => assert!(goal == Goal::Stop && living.is_some() && last <= number),
                        Finish::Launch { .. } => {
                            assert!(goal != Goal::Stop, "a stop launches nothing");
                            assert!(!launched, "{number} was launched already");
                        }
                        Finish::Done if goal == Goal::Stop => assert!(living.is_none() || last > number),
                        Finish::Done => {
                            let runs = living.is_some_and(|living| !living.stopping);
                            assert!(launched || goal == Goal::Start && runs, "{number} was never launched");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_restart_that_joins_keeps_the_number_and_everybody_who_waits() {
        let key = |id: &str| ReplayKey::for_tests(id);
        let first = Intent { requests: vec![key("one")], ..intent(Goal::Restart, 4) };
        let joined = Intent { requests: vec![key("two")], ..intent(Goal::Restart, 4) }.after(Some(&first));
        assert_eq!((joined.generation, joined.requests), (4, vec![key("one"), key("two")]));
        let stop = intent(Goal::Stop, 3).after(Some(&first));
        assert_eq!(
            (stop.generation, &*stop.requests),
            (4, &[][..]),
            "what it may have launched is to go too"
        );
        let start = intent(Goal::Start, 5).after(Some(&first));
        assert_eq!((start.goal, start.generation), (Goal::Restart, 4), "it is still that restart");
        assert_eq!(start.requests, [key("one")]);
        let start = intent(Goal::Start, 4).after(Some(&stop));
        assert_eq!((start.goal, start.generation), (Goal::Start, 4));
    }

    #[test]
    fn it_follows_what_became_of_the_requests() {
        let followed = intent(Goal::Restart, 4).following(UnderWay::Launch { generation: 5 });
        assert_eq!((followed.goal, followed.generation), (Goal::Restart, 5));
        let followed = followed.following(UnderWay::Stop { generation: 4 });
        assert_eq!((followed.goal, followed.generation), (Goal::Stop, 4), "a stop won");
    }

    #[test]
    fn a_path_of_another_version_is_no_obstacle() {
        let unknown = Intent { path: "of_tomorrow".to_owned(), ..intent(Goal::Stop, 1) };
        assert_eq!(unknown.path(), RestartPath::CtlStop);
        assert_eq!(intent(Goal::Stop, 1).path(), RestartPath::CtlRestart);
    }
}
