//! The hostile end of a lane: it writes any word of the shared memory at any time, mostly something that is nearly right.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use sealane_transport::shm::limits::{LANE_ENTRIES, LANE_ENTRY_WORDS, LANE_NOTES_PER_ENTRY, LANE_SECTIONS_AT};
use sealane_transport::shm::{
    DirectLane, Fate, LaneCopy, LaneKeeper, LaneMemory, LaneRecord, Note, Side, Standing, Way,
};

use super::super::assert_says;
use super::super::forge::{KEYS, vector};
use super::super::node::STEPS;
use super::super::script::Script;

/// The byte that only the victim's tensors consist of: 16 in a row are never made up here.
pub(super) const SECRET: u8 = 0xa5;
/// The byte that a correct end's tensors consist of.
pub(super) const HONEST: u8 = 7;
/// Most of what is forged concerns the first entries and positions, which a victim uses first.
const NEAR: usize = 6;
/// Bit of a note: the entry was withdrawn.
const WITHDRAWAL: u64 = 1 << 16;
/// Words of the header page that hold the steps of the daemon and the client.
const HEADER_WORDS: usize = 112;

/// The second side of a lane. It may also write what a correct end would.
pub(super) struct Hostile {
    pub(super) keeper: LaneKeeper,
    /// The direction in which the victim sends, and the one in which it receives.
    out: Way,
    into: Way,
    /// A correct end; `None` once it has found that the other side breaks the rules.
    end: Option<DirectLane>,
    /// Entries that the correct end has received and not decided.
    noted: Vec<u16>,
    /// Entries that the correct end has sent.
    sent: Vec<u16>,
    loaded: LaneCopy,
}

impl Hostile {
    /// A lane, and the victim's end of it.
    pub(super) fn new() -> (Hostile, DirectLane) {
        let keeper = LaneKeeper::create().expect("memory for a lane");
        let open = |side| {
            let memory = keeper.as_fd().try_clone_to_owned().expect("a descriptor");
            DirectLane::open(&memory, side).expect("a lane's end")
        };
        let (victim, end) = (open(Side::First), open(Side::Second));
        end.arrive();
        let (out, into) = (keeper.way(Side::First), keeper.way(Side::Second));
        let (noted, sent, loaded) = (Vec::new(), Vec::new(), LaneCopy::new());
        (Hostile { keeper, out, into, end: Some(end), noted, sent, loaded }, victim)
    }

    /// Does one thing that no correct end does.
    pub(super) fn forge(&mut self, script: &mut Script<'_>) {
        let way = if script.yes() { &self.into } else { &self.out };
        let entry = entry(script);
        match script.below(9) {
            0 | 1 => {
                let what = script.one_of(&[u64::from(entry), WITHDRAWAL | u64::from(entry), 1 << 17, u64::MAX >> 32]);
                let position = position(script);
                way.note(position).store(lap(position, LANE_ENTRIES * LANE_NOTES_PER_ENTRY) | what, Ordering::Release);
            }
            2 | 3 => {
                let (position, fate) = (position(script), script.below(8) as u64);
                way.returned(position)
                    .store(lap(position, LANE_ENTRIES) | fate << 16 | u64::from(entry), Ordering::Release);
            }
            4 => way.entry(entry)[0].store(script.below(8) as u64, Ordering::Release),
            5 => {
                let (kind, [text, meta]) = (script.below(5) as u64, [script.byte(), script.byte()].map(u64::from));
                let bytes = script.below(8 * LANE_ENTRY_WORDS + 4) as u64;
                way.entry(entry)[1].store(bytes << 48 | meta << 32 | text << 16 | kind, Ordering::Relaxed);
            }
            6 => {
                let word = script.below(LANE_ENTRY_WORDS);
                let value = script.number() & if word < LANE_SECTIONS_AT { u64::MAX } else { MADE_UP };
                way.entry(entry)[word].store(value, Ordering::Relaxed);
            }
            7 => {
                // If the entry holds a correct record of the same length, the record changes between two looks.
                with_record(script, |record| record.write(way.entry(entry)));
                way.entry(entry)[0].store(1, Ordering::Relaxed);
            }
            _ => self.keeper.header(script.below(HEADER_WORDS) as u64).store(script.number(), Ordering::Release),
        }
    }

    /// Does one thing that a correct end does, whatever that end finds in the memory.
    pub(super) fn behave(&mut self, script: &mut Script<'_>) {
        let Some(end) = &mut self.end else { return };
        let broken = match script.below(7) {
            0 | 1 => {
                with_record(script, |record| self.sent.extend(end.sender.send(record)));
                None
            }
            2 => {
                let withdrawn = self.sent.pop().is_some_and(|entry| end.sender.withdraw(entry));
                assert!(!withdrawn || end.sender.away() > 0);
                None
            }
            3 => match end.receiver.next_note() {
                Ok(Some(Note::Sent(entry))) => {
                    self.noted.push(entry);
                    end.receiver.load(entry, &mut self.loaded).err()
                }
                Ok(Some(Note::Withdrawn(entry))) => {
                    self.noted.retain(|noted| *noted != entry);
                    None
                }
                Ok(None) => None,
                Err(broken) => Some(broken),
            },
            4 => {
                let fate = script.one_of(&[Fate::Taken, Fate::Duplicate, Fate::Aborted, Fate::Taken]);
                if let Some(entry) = self.noted.pop()
                    && !end.receiver.settle(entry, fate)
                {
                    // It was withdrawn, or a note claims so.
                    self.noted.push(entry);
                }
                None
            }
            5 => end.sender.next_returned().err(),
            _ => {
                end.sender.publish();
                end.receiver.publish();
                None
            }
        };
        if let Some(broken) = broken {
            assert_says(&broken);
            self.end = None;
        }
    }

    /// Does what the daemon does with a lane, whatever the memory holds.
    pub(super) fn keep(&self, script: &mut Script<'_>) {
        match script.below(6) {
            0 => self.keeper.end(Side::Second),
            1 => self.keeper.abandon(),
            _ => {
                let other = self.end.as_ref().map(DirectLane::other);
                let has_ended = self.keeper.has_ended();
                assert!(has_ended || !matches!(other, Some(Standing::Gone | Standing::Abandoned)));
            }
        }
    }
}

/// Mask of made-up words, so that no byte is [`SECRET`].
const MADE_UP: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// An entry, most often one of the first.
fn entry(script: &mut Script<'_>) -> u16 {
    match script.byte() {
        near @ 0..=239 => u16::from(near) % NEAR as u16,
        far => (far as usize * 67 % LANE_ENTRIES) as u16,
    }
}

fn position(script: &mut Script<'_>) -> u64 {
    match script.byte() {
        near @ 0..=239 => u64::from(near) % (4 * NEAR as u64),
        240..=247 => script.number(),
        _ => (LANE_ENTRIES * LANE_NOTES_PER_ENTRY) as u64 + u64::from(script.byte()) % NEAR as u64,
    }
}

/// The upper half of a word at `position` in a queue of `of` slots.
fn lap(position: u64, of: usize) -> u64 {
    (position / of as u64 + 1) << 32
}

/// Makes a record and uses it.
fn with_record<T>(script: &mut Script<'_>, used: impl FnOnce(&LaneRecord<'_>) -> T) -> T {
    let (step, key) = (script.below(STEPS) as i64, script.one_of(&KEYS));
    let bytes = &[HONEST; 600][..script.one_of(&[0, 8, 40, 40, 500])];
    let meta = if script.below(6) == 0 { script.bytes(30).into() } else { vector(bytes.len() as u64).to_vec() };
    used(&match script.below(10) {
        0..=6 => LaneRecord::Tensor { step, key, meta: &meta, bytes },
        7 | 8 => LaneRecord::ByDaemon { step, key },
        _ => LaneRecord::Ended { step: if script.yes() { step } else { script.number() as i64 }, reason: key },
    })
}
