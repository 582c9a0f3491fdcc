//! Runs every fuzz target on its seeds, its corpus, and inputs made at random from these. `cargo xtask fuzz` searches further.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sealane_tests::fuzz::corpus::{corpora, pack};
use sealane_tests::fuzz::{TARGETS, Target};

/// Random inputs for each target.
const CASES: u32 = 15_000;
/// Most changes to one input.
const CHANGES_MAX: usize = 6;

/// Most inputs that a target's corpus keeps, including those that once broke a promise; and most bytes of all of them.
const KEPT_MAX: usize = 160;
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A change to a kept input.
#[derive(Debug, Clone)]
enum Change {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    /// Overwrites part of the input with one of the target's words.
    Write(prop::sample::Index, prop::sample::Index),
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>, words: &[&[u8]]) {
        let length = input.len();
        let range = |at: &prop::sample::Index, count: usize| {
            let start = at.index(length + 1);
            start..(start + count).min(length)
        };
        match self {
            Change::Set(at, byte) if length > 0 => input[at.index(length)] = *byte,
            Change::Flip(at, bit) if length > 0 => input[at.index(length)] ^= 1 << bit,
            Change::Set(..) | Change::Flip(..) => {}
            Change::Insert(at, bytes) => {
                let at = at.index(length + 1);
                input.splice(at..at, bytes.iter().copied());
            }
            Change::Remove(at, count) => drop(input.drain(range(at, *count))),
            Change::Repeat(at, count) => {
                let bytes = input[range(at, *count)].to_vec();
                input.extend_from_slice(&bytes);
            }
            Change::Write(at, word) if !words.is_empty() => {
                let word = words[word.index(words.len())];
                drop(input.splice(range(at, word.len()), word.iter().copied()));
            }
            Change::Write(..) => {}
        }
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..20_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (at(), 1..40_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        (at(), at()).prop_map(|(at, word)| Change::Write(at, word)),
    ]
}

/// Random bytes, or one of `known` with some changes.
fn any_input(target: &Target, known: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> + use<> {
    let changed = (prop::sample::select(known), prop::collection::vec(any_change(), 0..CHANGES_MAX));
    let words = target.words;
    let changed = changed.prop_map(move |(mut input, changes)| {
        changes.iter().for_each(|change| change.apply(&mut input, words));
        input
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..target.input_bytes_max), 4 => changed]
}

#[test]
fn no_promise_is_broken_by_any_input() {
    for target in TARGETS {
        let mut known = (target.seeds)();
        assert!(!known.is_empty(), "{} has no seeds", target.name);
        let kept = target.corpus().unwrap_or_else(|error| panic!("the corpus of {}: {error}", target.name));
        for (name, input) in kept {
            eprintln!("{} {name}", target.name);
            (target.run)(&input);
            known.push(input);
        }
        known.iter().for_each(|input| (target.run)(input));
        let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&any_input(target, known), |input| {
            (target.run)(&input);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{}: {error}", target.name));
    }
}

#[test]
fn the_corpora_stay_small_and_each_has_its_target() {
    let mut bytes = 0;
    for target in TARGETS {
        let kept = target.corpus().unwrap_or_else(|error| panic!("the corpus of {}: {error}", target.name));
        assert!(!kept.is_empty() && kept.len() <= KEPT_MAX, "{} keeps {} inputs", target.name, kept.len());
        bytes += kept.iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes <= KEPT_BYTES_MAX, "the corpora have {bytes} bytes");
    let names = |folder: std::path::PathBuf| {
        let entries = std::fs::read_dir(folder).expect("there are corpora");
        entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("names are plain"))
    };
    let files = names(corpora()).filter(|name| name != "found");
    let targets = files.map(|name| name.strip_suffix(".tar").map_or(name.clone(), str::to_owned));
    let targets = targets.chain(names(corpora().join("found")));
    let strangers: Vec<_> = targets.filter(|name| !TARGETS.iter().any(|target| name == target.name)).collect();
    assert!(strangers.is_empty(), "corpora without a target: {strangers:?}");
}

#[test]
fn an_archive_that_is_packed_again_is_the_same() {
    let folder = tempfile::tempdir().expect("there is room");
    for target in TARGETS {
        let archived = target.archived().unwrap_or_else(|error| panic!("the archive of {}: {error}", target.name));
        let mut different: Vec<_> = archived.iter().map(|(_, input)| input).collect();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), archived.len(), "{} keeps an input twice", target.name);
        let again = folder.path().join(target.name);
        pack(&again, &archived).expect("it can be written");
        let bytes = |path| std::fs::read(path).expect("it was just there");
        assert!(bytes(again) == bytes(target.corpus_archive()), "{} was not packed by `cargo xtask fuzz`", target.name);
    }
}
