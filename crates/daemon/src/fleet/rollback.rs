//! The launches of an agent that are kept on disk: which one stayed up, which is on trial, which ones failed.
//!
//! ```text
//!            order            its process lives           it stays up
//!  (entry) ────────► coming ───────────────────► present ─────────────► present, the last good one
//!                                                   │ rolled back
//!                                                   ▼
//!                              bad   ◄───────── present: the last good one again
//! ```
//!
//! A launch stays up when its start was a success (`settleMs`) and, if it was on trial, when `rollback.withinMs` has passed
//! too. An agent that asks for its own restart lives, which is all that is asked of one that is on no trial.
//! The trial itself is the machine's; what is kept here is enough for the next daemon to go on with it.

use mcp_restart_config::{Agent, Rollback};
use mcp_restart_protocol::timestamp::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How many launches that were rolled back are remembered.
const BAD_MAX: usize = 8;

/// How many launches that were ordered, and of which no process was seen yet, are remembered.
const COMING_MAX: usize = 8;

/// What is kept of an agent's launches.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Launches {
    /// Ordered, and not seen to live yet: the first of them may be about to, while more are ordered.
    #[serde(default)]
    coming: VecDeque<Coming>,
    /// The last one that was seen.
    #[serde(default)]
    present: Option<Present>,
    /// The last one that stayed up, if it is not the present one.
    #[serde(default)]
    good: Option<Kept>,
    #[serde(default)]
    bad: VecDeque<Kept>,
}

/// A launch that was on trial when its daemon died, or whose rollback was under way.
#[derive(Debug, Clone)]
pub(super) struct Unfinished {
    pub generation: u64,
    pub started_at: Timestamp,
    pub within: Duration,
    pub fallback: Arc<Agent>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Coming {
    entry: Kept,
    trial_ms: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Present {
    generation: u64,
    started_at: Timestamp,
    entry: Kept,
    trial_ms: Option<u64>,
    stays_up: bool,
}

/// An entry of the config, complete, as JSON.
#[derive(Debug, Clone)]
struct Kept(Arc<Agent>);

impl Launches {
    /// An entry is about to be launched, with `trial` as long as it takes to prove itself.
    pub(super) fn order(&mut self, entry: &Arc<Agent>, trial: Option<Duration>) {
        let trial_ms = trial.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.coming.push_back(Coming { entry: Kept(Arc::clone(entry)), trial_ms });
        self.coming.drain(..self.coming.len().saturating_sub(COMING_MAX));
    }

    /// Whatever was ordered has come, or will not.
    pub(super) fn nothing_comes(&mut self) {
        self.coming.clear();
    }

    /// Whether [`Launches::nothing_comes`] would change anything.
    pub(super) fn something_comes(&self) -> bool {
        !self.coming.is_empty()
    }

    /// A process of this launch lives, or did. It is the one that was ordered, or the last good one again.
    pub(super) fn lives(&mut self, generation: u64, hash: u64, started_at: Timestamp) {
        if self.present.as_ref().is_some_and(|present| present.generation >= generation) {
            return;
        }
        let good = self.last_good().cloned();
        let is = |entry: &Agent| entry.fingerprint() == hash;
        let ordered = self.coming.iter().position(|coming| is(&coming.entry.0));
        // Those that were ordered before it never came.
        let ordered = ordered.and_then(|at| self.coming.drain(..=at).next_back());
        let (entry, trial_ms) = if let Some(coming) = ordered {
            (Some(coming.entry), coming.trial_ms)
        } else {
            let again = good.clone().filter(|good| is(good));
            if again.is_some() && self.is_on_trial() {
                self.fails();
                self.coming.clear();
            }
            (again.map(Kept), None)
        };
        self.good = good.map(Kept);
        self.present =
            entry.map(|entry| Present { generation, started_at, entry, trial_ms, stays_up: false });
    }

    /// The launch that was on trial did not live: it is remembered.
    pub(super) fn fails(&mut self) {
        let present = self.present.as_ref().filter(|present| !present.stays_up);
        let failed = present.map(|present| &present.entry);
        // Of one that could not even be executed there is no more than that it was ordered.
        let ordered = self.coming.iter().find(|coming| coming.trial_ms.is_some());
        let Some(failed) = failed.or(ordered.map(|coming| &coming.entry)).cloned() else { return };
        self.bad.retain(|bad| !bad.0.launches_like(&failed.0));
        self.bad.push_back(failed);
        self.bad.drain(..self.bad.len().saturating_sub(BAD_MAX));
    }

    /// The present launch is one that stays up.
    pub(super) fn stays_up(&mut self, generation: u64) {
        let Some(present) = self.present.as_mut().filter(|present| present.generation == generation) else {
            return;
        };
        (present.stays_up, present.trial_ms) = (true, None);
        self.good = None;
        self.bad.retain(|bad| !bad.0.launches_like(&present.entry.0));
    }

    fn is_on_trial(&self) -> bool {
        let present = self.present.as_ref().and_then(|present| present.trial_ms);
        present.is_some() || self.coming.iter().any(|coming| coming.trial_ms.is_some())
    }

    /// Whether that is still to be written down of the present launch.
    pub(super) fn is_to_prove(&self, generation: u64) -> bool {
        self.present.as_ref().is_some_and(|present| present.generation == generation && !present.stays_up)
    }

    /// The agent itself asks for its restart: if it is on no trial, it has proved that it lives.
    pub(super) fn asks_for_itself(&mut self) {
        if let Some(present) = self.present.as_ref().filter(|present| present.trial_ms.is_none()) {
            self.stays_up(present.generation);
        }
    }

    /// Whatever becomes of the present launch, it is not rolled back.
    pub(super) fn end_trial(&mut self) {
        if let Some(present) = &mut self.present {
            present.trial_ms = None;
        }
    }

    /// The number of the present launch.
    pub(super) fn generation(&self) -> Option<u64> {
        self.present.as_ref().map(|present| present.generation)
    }

    /// The entry that this launch was made from.
    pub(super) fn entry(&self, generation: u64) -> Option<&Arc<Agent>> {
        let present = self.present.as_ref().filter(|present| present.generation == generation)?;
        Some(&present.entry.0)
    }

    /// The last launch that stayed up.
    pub(super) fn last_good(&self) -> Option<&Arc<Agent>> {
        let present = self.present.as_ref().filter(|present| present.stays_up);
        present.map(|present| &present.entry).or(self.good.as_ref()).map(|kept| &kept.0)
    }

    /// How long a restart with this entry is on trial, and what takes its place if it fails; none for one that
    /// changes nothing. `own`: the agent asks for it itself.
    pub(super) fn trial_of(&self, entry: &Agent, own: bool) -> Option<(Duration, Arc<Agent>)> {
        let within = match entry.rollback {
            Rollback::EveryRestart(within) => within,
            Rollback::SelfRestarts(within) if own => within,
            Rollback::SelfRestarts(_) | Rollback::Never => return None,
        };
        let good = self.last_good().filter(|good| !good.launches_like(entry))?;
        Some((within, Arc::clone(good)))
    }

    /// Whether this launch was rolled back, and has not stayed up since.
    pub(super) fn is_known_bad(&self, entry: &Agent) -> bool {
        self.bad.iter().any(|bad| bad.0.launches_like(entry))
    }

    /// The trial that the next daemon goes on with.
    pub(super) fn unfinished(&self) -> Option<Unfinished> {
        let present = self.present.as_ref()?;
        let within = Duration::from_millis(present.trial_ms?);
        let fallback = Arc::clone(&self.good.as_ref()?.0);
        Some(Unfinished { generation: present.generation, started_at: present.started_at, within, fallback })
    }
}

/// What is kept; what another version has written and this one does not understand is nothing.
pub(super) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Launches, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let launches = serde_json::from_value(value)
        .inspect_err(|error| tracing::warn!(%error, "the launches of an agent are not understood"));
    Ok(launches.unwrap_or_default())
}

impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_fields().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = serde_json::Map::deserialize(deserializer)?;
        let agent = Agent::from_fields(fields);
        agent.map(Arc::new).map(Self).ok_or_else(|| D::Error::custom("not an entry of this version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcp_restart_config::{Environment, from_text};
    use std::path::Path;

    const SECONDS: Duration = Duration::from_secs(15);

    fn entry(argument: &str, rollback: &str) -> Arc<Agent> {
        let text = format!(
            r#"{{"agents":[{{"name":"a","command":"sh","args":["{argument}"],"rollback":{rollback}}}]}}"#
        );
        let environment = Environment { home: Some("/home/ada".into()), ..Environment::default() };
        let mut config = from_text(&text, Path::new("/project/config.json"), &environment).unwrap();
        Arc::new(config.agents.remove(0))
    }

    fn launch(launches: &mut Launches, generation: u64, argument: &str, own: bool) {
        let entry = entry(argument, "{}");
        if own {
            launches.asks_for_itself();
        }
        let trial = launches.trial_of(&entry, own).map(|(within, _)| within);
        launches.order(&entry, trial);
        launches.lives(generation, entry.fingerprint(), Timestamp(generation * 1000));
    }

    fn good(launches: &Launches) -> Option<&str> {
        launches.last_good().and_then(|agent| agent.args.first()).map(String::as_str)
    }

    /// As the next daemon reads it.
    fn reread(launches: &Launches) -> Launches {
        serde_json::from_str(&serde_json::to_string(launches).unwrap()).unwrap()
    }

    #[test]
    fn a_changed_launch_of_a_self_restart_is_on_trial_against_the_last_that_stayed_up() {
        let mut launches = Launches::default();
        launch(&mut launches, 1, "one", false);
        assert_eq!(good(&launches), None, "it has yet to settle");
        launch(&mut launches, 2, "two", true);
        assert_eq!(good(&launches), Some("one"), "who asks for itself lives");
        launch(&mut launches, 3, "three", true);
        assert_eq!(good(&launches), Some("one"), "one on trial has proved nothing by asking");
        let unfinished = reread(&launches).unfinished().unwrap();
        assert_eq!((unfinished.generation, unfinished.within), (3, SECONDS));
        assert_eq!(unfinished.started_at, Timestamp(3000));
        assert_eq!(unfinished.fallback.args, ["one"]);
        launches.stays_up(3);
        assert_eq!(good(&launches), Some("three"));
        assert!(launches.unfinished().is_none());
    }

    #[test]
    fn a_launch_that_was_rolled_back_is_known_bad_until_it_stays_up_and_the_good_one_runs_again() {
        let mut launches = Launches::default();
        launch(&mut launches, 1, "one", false);
        launch(&mut launches, 2, "two", true);
        launches.lives(3, entry("one", "{}").fingerprint(), Timestamp(3000));
        let mut launches = reread(&launches);
        assert!(launches.is_known_bad(&entry("two", "{}")));
        assert!(!launches.is_known_bad(&entry("three", "{}")), "until the entry changes");
        assert_eq!(
            (good(&launches), launches.entry(3).unwrap().args.as_slice()),
            (Some("one"), &["one".to_owned()][..])
        );
        assert!(launches.unfinished().is_none(), "once");
        launch(&mut launches, 4, "two", false);
        launches.stays_up(4);
        assert!(!launches.is_known_bad(&entry("two", "{}")), "it was forced, and lived");
    }

    #[test]
    fn a_launch_that_could_not_even_be_executed_is_known_bad_too() {
        let mut launches = Launches::default();
        launch(&mut launches, 1, "one", false);
        launches.asks_for_itself();
        launches.order(&entry("two", "{}"), Some(SECONDS));
        launches.fails();
        launches.lives(3, entry("one", "{}").fingerprint(), Timestamp(3000));
        assert!(launches.is_known_bad(&entry("two", "{}")) && !launches.is_known_bad(&entry("one", "{}")));
        assert_eq!((good(&launches), launches.generation()), (Some("one"), Some(3)));
    }

    #[test]
    fn of_launches_that_are_ordered_at_once_none_is_taken_for_the_rollback_of_another() {
        for trial in [None, Some(SECONDS)] {
            let mut launches = Launches::default();
            launch(&mut launches, 1, "one", false);
            launches.stays_up(1);
            launches.order(&entry("one", "{}"), None);
            launches.order(&entry("two", "{}"), trial);
            launches.order(&entry("one", "{}"), None);
            let one = entry("one", "{}").fingerprint();
            launches.lives(2, one, Timestamp(2000));
            launches.lives(3, one, Timestamp(3000));
            assert!(
                !launches.is_known_bad(&entry("two", "{}")) && !launches.is_known_bad(&entry("one", "{}"))
            );
            assert_eq!(launches.generation(), Some(3));
            assert!(!launches.something_comes());
        }
    }

    #[test]
    fn whose_restarts_are_on_trial_is_for_the_entry_to_say() {
        let mut launches = Launches::default();
        launch(&mut launches, 1, "one", false);
        launches.stays_up(1);
        let table = [
            ("two", "{}", true, true),
            ("two", "{}", false, false),
            ("two", r#"{"always":true}"#, false, true),
            ("two", "false", true, false),
            ("one", "{}", true, false),
        ];
        for (argument, rollback, own, on_trial) in table {
            let trial = launches.trial_of(&entry(argument, rollback), own);
            assert_eq!(trial.is_some(), on_trial, "{argument} {rollback} {own}");
        }
    }

    #[test]
    fn what_another_version_wrote_is_nothing_and_no_obstacle() {
        #[derive(Deserialize)]
        struct Record {
            #[serde(deserialize_with = "lenient")]
            launches: Launches,
        }
        let text = r#"{"launches":{"present":{"generation":1,"entry":{"nobody":"knows"}}}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record.launches.generation(), None);
    }
}
