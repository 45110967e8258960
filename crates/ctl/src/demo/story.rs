//! What has to happen in the demo, and what did.

use mcp_restart_protocol::agent::{AgentState, AgentView};
use serde::{Serialize, Serializer};
use std::time::{Duration, Instant};

/// Who speaks when it is not the agent.
pub(super) const DAEMON: &str = "daemon";
/// The name of the agent.
pub(super) const AGENT: &str = "demo";
/// What the first process of the agent leaves for the second.
pub(super) const NOTE: &str = "I changed --edition to 2: check that you have it.";

/// One thing that has to happen, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    DaemonServes,
    FirstRuns,
    ListsItself,
    EditsItsEntry,
    RestartsItself,
    FirstEnds,
    SecondRuns,
    SeesTheChange,
    ReadsTheNote,
    DaemonAgrees,
    NothingIsLeft,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    /// Since the beginning.
    #[serde(rename = "atMs", serialize_with = "milliseconds")]
    pub(super) at: Duration,
    /// The daemon, or which generation of the agent.
    pub(super) who: String,
    /// What happened.
    pub(super) text: String,
}

/// The timeline, and the steps that were seen.
#[derive(Debug)]
pub(super) struct Story {
    begun: Instant,
    lines: Vec<Line>,
    seen: Vec<Step>,
    first: Option<u32>,
}

/// What the agent says, a line of its log each: `generation 1 list_agents: …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    Born,
    Listed,
    Edited,
    Restarted,
    Handoff,
}

impl Step {
    const ALL: [Self; 11] = [
        Self::DaemonServes,
        Self::FirstRuns,
        Self::ListsItself,
        Self::EditsItsEntry,
        Self::RestartsItself,
        Self::FirstEnds,
        Self::SecondRuns,
        Self::SeesTheChange,
        Self::ReadsTheNote,
        Self::DaemonAgrees,
        Self::NothingIsLeft,
    ];

    /// For a person.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::DaemonServes => "the daemon serves and its endpoint listens",
            Self::FirstRuns => "the agent runs",
            Self::ListsItself => "the agent finds itself with list_agents",
            Self::EditsItsEntry => "the agent edits its own entry in the config",
            Self::RestartsItself => "the agent calls restart_agent on itself",
            Self::FirstEnds => "the first process is stopped",
            Self::SecondRuns => "generation 2 runs in a new process",
            Self::SeesTheChange => "generation 2 is launched with the changed config",
            Self::ReadsTheNote => "generation 2 reads the note with get_handoff",
            Self::DaemonAgrees => "the daemon's own hand-off record says the same",
            Self::NothingIsLeft => "everything is stopped and removed",
        }
    }
}

impl Topic {
    const ALL: [Self; 5] = [Self::Born, Self::Listed, Self::Edited, Self::Restarted, Self::Handoff];

    /// The word that begins such a line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Born => "starts",
            Self::Listed => "list_agents",
            Self::Edited => "edits",
            Self::Restarted => "restart_agent",
            Self::Handoff => "get_handoff",
        }
    }
}

impl Story {
    /// Begins now.
    pub(super) fn begin() -> Self {
        Self { begun: Instant::now(), lines: Vec::new(), seen: Vec::new(), first: None }
    }

    /// The daemon serves.
    pub(super) fn daemon_serves(&mut self, pid: u32, url: &str) -> Line {
        self.seen.push(Step::DaemonServes);
        self.add(DAEMON, format!("serves MCP on {url} (pid {pid})"))
    }

    /// The daemon told of the agent; what is worth a line gets one.
    pub(super) fn event(&mut self, agent: &AgentView) -> Option<Line> {
        let (step, text) = match (agent.state, agent.generation, agent.pid) {
            (AgentState::Running, 1, Some(pid)) => {
                self.first = Some(pid);
                (Step::FirstRuns, format!("started the agent: generation 1, pid {pid}"))
            }
            (AgentState::Stopping, 1, Some(pid)) => {
                (Step::FirstEnds, format!("stops generation 1, pid {pid}"))
            }
            (AgentState::Running, 2, Some(pid)) if self.first.is_some_and(|first| first != pid) => {
                (Step::SecondRuns, format!("started the agent again: generation 2, pid {pid}"))
            }
            _ => return None,
        };
        // A later change of the same state, such as a first connection, is no news.
        (!self.seen.contains(&step)).then(|| {
            self.seen.push(step);
            self.add(DAEMON, text)
        })
    }

    /// The generation whose start was seen last.
    pub(super) fn generation(&self) -> u64 {
        [Step::FirstRuns, Step::SecondRuns].iter().filter(|step| self.seen.contains(step)).count() as u64
    }

    /// The agent wrote a line; what is not part of the story is passed on as it is.
    pub(super) fn said(&mut self, line: &str) -> Line {
        let Some((generation, rest)) = parse(line) else { return self.add("agent", line.to_owned()) };
        let step =
            Topic::ALL.into_iter().find(|topic| rest.starts_with(topic.word())).and_then(|topic| {
                match (topic, generation) {
                    (Topic::Listed, 1) => Some(Step::ListsItself),
                    (Topic::Edited, 1) => Some(Step::EditsItsEntry),
                    (Topic::Restarted, 1) => Some(Step::RestartsItself),
                    (Topic::Born, 2) if rest.ends_with("--edition 2") => Some(Step::SeesTheChange),
                    (Topic::Handoff, 2) if rest.contains(NOTE) => Some(Step::ReadsTheNote),
                    _ => None,
                }
            });
        self.seen.extend(step);
        self.add(&format!("generation {generation}"), rest.to_owned())
    }

    /// The daemon's own record of the hand-off has the note and the change.
    pub(super) fn daemon_agrees(&mut self) {
        self.seen.push(Step::DaemonAgrees);
    }

    /// Nothing is left.
    pub(super) fn cleared_away(&mut self) -> Line {
        self.seen.push(Step::NothingIsLeft);
        self.add(DAEMON, "is stopped, with the agent; the temporary folder is removed".to_owned())
    }

    /// Whether the agent has told all that it has to tell.
    pub(super) fn told(&self) -> bool {
        [Step::SecondRuns, Step::SeesTheChange, Step::ReadsTheNote]
            .iter()
            .all(|step| self.seen.contains(step))
    }

    /// The first step that did not happen.
    pub(super) fn missing(&self) -> Option<Step> {
        Step::ALL.into_iter().find(|step| !self.seen.contains(step))
    }

    /// The timeline.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    fn add(&mut self, who: &str, text: String) -> Line {
        let line = Line { at: self.begun.elapsed(), who: who.to_owned(), text };
        self.lines.push(line.clone());
        line
    }
}

/// The generation that a line of the agent is from, and what it says.
pub(super) fn parse(line: &str) -> Option<(u64, &str)> {
    let (generation, rest) = line.strip_prefix("generation ")?.split_once(' ')?;
    Some((generation.parse().ok()?, rest))
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::view;

    fn agent(state: AgentState, generation: u64, pid: u32) -> AgentView {
        AgentView { pid: Some(pid), ..view(AGENT, state, generation) }
    }

    fn whole(second_pid: u32, edition: u32, note: &str) -> Story {
        let mut story = Story::begin();
        story.daemon_serves(1, "http://127.0.0.1:1/mcp");
        story.event(&agent(AgentState::Running, 1, 7));
        story.said("generation 1 starts with --edition 1");
        story.said("generation 1 list_agents: I am demo");
        story.said("generation 1 edits its entry");
        story.said("generation 1 restart_agent: accepted");
        story.event(&agent(AgentState::Stopping, 1, 7));
        story.event(&agent(AgentState::Running, 2, second_pid));
        story.said(&format!("generation 2 starts with --edition {edition}"));
        story.said(&format!("generation 2 get_handoff: “{note}”"));
        story.daemon_agrees();
        story.cleared_away();
        story
    }

    #[test]
    fn only_the_whole_story_is_complete() {
        assert_eq!(whole(8, 2, NOTE).missing(), None);
        assert_eq!(Story::begin().missing(), Some(Step::DaemonServes));
    }

    #[test]
    fn the_same_process_an_unchanged_launch_or_another_note_is_noticed() {
        assert_eq!(whole(7, 2, NOTE).missing(), Some(Step::SecondRuns));
        assert_eq!(whole(8, 1, NOTE).missing(), Some(Step::SeesTheChange));
        assert_eq!(whole(8, 2, "something else").missing(), Some(Step::ReadsTheNote));
    }

    #[test]
    fn a_state_that_is_told_twice_is_one_line() {
        let mut story = Story::begin();
        assert!(story.event(&agent(AgentState::Running, 1, 7)).is_some());
        assert!(story.event(&agent(AgentState::Running, 1, 7)).is_none());
    }
}
