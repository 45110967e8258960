//! Damaged frames, of everything that any program of ours reads. What is damaged are the pinned bytes of every
//! variant, so a new one is part of this by itself.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "these are tests, helpers included: what they panic over is what they found"
)]

mod laws;

use laws::{are_values_or_errors, readers_agree};
use mcp_restart_protocol::codec::FRAME_MAX;
use mcp_restart_protocol::hello::{HELLO_LEN, Hello, Verb};
use proptest::prelude::*;
use proptest::sample::Index;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// The bytes that the golden tests pin, one value each.
static PINNED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    // A length that nobody sent and somebody allocates ends this program.
    let enough = Some(2 << 30);
    setrlimit(Resource::As, Rlimit { current: enough, maximum: enough }).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snapshots");
    let texts = fs::read_dir(folder).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let pinned: Vec<_> =
        texts.flat_map(|text| text.lines().filter_map(pinned_bytes).collect::<Vec<_>>()).collect();
    assert!(pinned.len() > 50, "the golden bytes are elsewhere: {}", pinned.len());
    pinned
});

/// The bytes in a line of a snapshot: `Launch 00016102…`.
fn pinned_bytes(line: &str) -> Option<Vec<u8>> {
    let (_, digits) = line.split_once(' ')?;
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| pair.len() == 2)?, 16).ok()).collect()
}

#[derive(Debug, Clone)]
enum Damage {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// A part of another value.
    Graft(Index, Index, Index),
}

/// What bincode gives a meaning: how long a number is that follows, and lengths at the edges.
fn telling_bytes() -> impl Strategy<Value = Vec<u8>> {
    let number = |length: std::ops::RangeInclusive<usize>| prop::collection::vec(any::<u8>(), length);
    prop_oneof![
        number(0..=3),
        number(2..=2).prop_map(|rest| [vec![251], rest].concat()),
        number(4..=4).prop_map(|rest| [vec![252], rest].concat()),
        number(8..=8).prop_map(|rest| [vec![253], rest].concat()),
        number(16..=16).prop_map(|rest| [vec![254], rest].concat()),
        Just([&[253][..], &u64::MAX.to_le_bytes()].concat()),
        Just([&[253][..], &(FRAME_MAX as u64).to_le_bytes()].concat()),
        Just([&[252][..], &(1_u32 << 30).to_le_bytes()].concat()),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        (index(), prop_oneof![any::<u8>(), Just(0xff), 248_u8..=255])
            .prop_map(|(at, to)| Damage::Set(at, to)),
        (index(), telling_bytes()).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (index(), 1..20_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (index(), index(), index()).prop_map(|(at, from, of)| Damage::Graft(at, from, of)),
    ]
}

fn damaged(value: Index, damages: &[Damage]) -> Vec<u8> {
    let mut bytes = value.get(&PINNED).clone();
    for damage in damages {
        let length = bytes.len();
        match damage {
            Damage::Set(at, to) if length > 0 => bytes[at.index(length)] = *to,
            Damage::Insert(at, piece) => {
                let at = at.index(length + 1);
                bytes.splice(at..at, piece.iter().copied());
            }
            Damage::Remove(at, count) if length > 0 => {
                let at = at.index(length);
                bytes.drain(at..(at + count).min(length));
            }
            Damage::Graft(at, from, of) => {
                let other = of.get(&PINNED);
                bytes.truncate(at.index(length + 1));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
            Damage::Set(..) | Damage::Remove(..) => {}
        }
    }
    bytes
}

proptest! {
    // More of them with PROPTEST_CASES; never fewer.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2_000), ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_are_a_value_or_an_error_whatever_they_are_read_as(
        value in any::<Index>(), damages in prop::collection::vec(damage(), 1..5),
    ) {
        let bytes = damaged(value, &damages);
        are_values_or_errors(&bytes);
    }

    #[test]
    fn a_stream_of_damaged_frames_with_lengths_that_lie_ends_in_the_same_way_for_both_readers(
        values in prop::collection::vec((any::<Index>(), prop::collection::vec(damage(), 0..2)), 1..4),
        lie in prop::option::of((any::<Index>(), any::<u32>())),
    ) {
        let bodies: Vec<_> = values.iter().map(|(value, damages)| damaged(*value, damages)).collect();
        let mut stream = Vec::new();
        for (index, body) in bodies.iter().enumerate() {
            let told = lie.filter(|(at, _)| at.index(bodies.len()) == index).map(|(_, length)| length);
            let length = told.unwrap_or(u32::try_from(body.len()).unwrap());
            stream.extend_from_slice(&length.to_le_bytes());
            stream.extend_from_slice(body);
        }
        readers_agree(&stream);
    }

    #[test]
    fn a_damaged_hello_is_one_or_is_refused(at in 0..HELLO_LEN, to in any::<u8>(), verb in 0_usize..4) {
        let verb = [Verb::Talk, Verb::Status, Verb::Shutdown, Verb::Bridge][verb];
        let mut bytes = Hello::ours(verb).to_bytes();
        bytes[at] = to;
        if let Ok(hello) = Hello::from_bytes(&bytes) {
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        }
    }
}
