//! Tables: every task writes rows of its own without a pause, pulls those of two others by one call, and pushes rows to both. A row
//! says who wrote it, in which version; versions are ticks of the clock, and row 0 is written in each.

use std::thread;
use std::time::Duration;

use sealane::{
    AcceptOptions, Accepted, Buffer, DType, Error, PulledRows, RowUpdate, RowsOptions, RowsWanted, SendOptions,
    ShardedTable, Sharding, SumRows, Table, TableOptions, TableRows, Tensor, TensorMeta, Unreceived,
};

use super::ledger::{Outcome, What, now_us};
use super::tensors::{Kind, Label, fill, mix, read_bytes};
use super::{Actor, name, number, owners};

const KEY: &str = "table";
const QUEUE: &str = "rows";

/// Rows of a task's table, and bytes of each.
const ROWS: u64 = 500;
const ROW_BYTES: usize = 200;

/// A version, in microseconds, and the rows that are written in each.
const VERSION_US: u64 = 40_000;
const WRITTEN: u64 = 25;

/// Rows of one pull or push; some are named twice.
const NAMED: u64 = 120;

/// Longer than most troubles.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Calls without a pause would leave nobody else a processor.
const PULL_PAUSE: Duration = Duration::from_millis(30);
const PUSH_PAUSE: Duration = Duration::from_millis(50);

/// How long an accept waits, and how long what is pushed in the end is accepted.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(400);
const AFTERWARDS: Duration = Duration::from_secs(6);

/// Numbers in a pushed row.
const NUMBERS: usize = 8;

/// Writes rows of a table, version after version, and gives it back.
pub(super) fn write(actor: &Actor) -> Option<Table> {
    let mut table = None;
    let mut version = now_us() / VERSION_US + 1;
    while !actor.orders.is_over(now_us()) {
        thread::sleep(Duration::from_micros((version * VERSION_US).saturating_sub(now_us())));
        thread::sleep(actor.orders.silence_for());
        let call = actor.ledger.begin(What::Write { version: version as i64 }, Duration::ZERO);
        actor.ledger.end(call, write_version(actor, &mut table, version));
        version = (version + 1).max(now_us() / VERSION_US);
    }
    table
}

fn write_version(actor: &Actor, table: &mut Option<Table>, version: u64) -> Result<(), Error> {
    let Some(table) = table else {
        let all: Vec<u64> = (0..ROWS).collect();
        let options = TableOptions { version: version as i64, torn: false };
        *table = Some(actor.task.publish_table(KEY, rows(actor, &all, version)?, options)?);
        return Ok(());
    };
    let mut ids: Vec<u64> = (1..WRITTEN).map(|at| mix(version, at) % ROWS).collect();
    ids.push(0);
    table.update(&ids, &rows(actor, &ids, version)?)?;
    table.set_version(version as i64)
}

fn rows(actor: &Actor, ids: &[u64], version: u64) -> Result<Tensor, Error> {
    let mut bytes = vec![0; ids.len() * ROW_BYTES];
    for (&id, row) in ids.iter().zip(bytes.chunks_mut(ROW_BYTES)) {
        let label = Label { kind: Kind::Row, from: actor.me, life: actor.life, number: version, key: id as u32 };
        fill(row, &label.head(ROW_BYTES));
    }
    let meta = TensorMeta::new(DType::U8, &[ids.len() as u64, ROW_BYTES as u64])?;
    Tensor::new(meta, Buffer::from_vec(bytes))
}

fn sharded(of: usize) -> ShardedTable {
    let sharding = Sharding::modulo(2 * ROWS, 2).expect("it has rows and owners");
    ShardedTable::new(KEY, owners(of).map(name), sharding).expect("two owners, and a short key")
}

/// Rows of both owners, and row 0 of each.
fn named(seed: u64) -> Vec<u64> {
    [0, 1].into_iter().chain((2..NAMED).map(|at| mix(seed, at) % (2 * ROWS))).collect()
}

/// Pulls rows of two tables at once: what is newer than the last, and whatever there is.
pub(super) fn pull(actor: &Actor) {
    let table = sharded(actor.me);
    let mut newest = [i64::MIN; 2];
    let mut pulls = 0;
    while !actor.orders.is_over(now_us()) {
        thread::sleep(actor.orders.rest_for());
        pulls += 1;
        let min_version = if pulls % 2 == 0 { newest[0].min(newest[1]).saturating_add(1) } else { i64::MIN };
        let ids = named(mix(now_us(), pulls));
        // Into shared memory, into memory of this process, and wherever they land.
        let bytes = ids.len() * ROW_BYTES;
        let out = match pulls % 3 {
            0 => actor.task.alloc(bytes).ok(),
            1 => Some(Buffer::from_vec(vec![0; bytes])),
            _ => None,
        };
        let options = RowsOptions { min_version, timeout: Some(TIMEOUT), partial: pulls % 4 == 0 };
        let wanted = RowsWanted { table: &table, ids: &ids, out };
        let call = actor.ledger.begin(What::PullRows { from: owners(actor.me), min: min_version }, TIMEOUT);
        let outcome = judge(actor.me, &table, &ids, actor.task.pull_rows_into(wanted, &options).wait());
        if let Outcome::Pulled(versions) = &outcome {
            let seen = newest.iter_mut().zip(versions);
            seen.for_each(|(newest, version)| *newest = version.map_or(*newest, |version| version.max(*newest)));
        }
        actor.ledger.end(call, outcome);
        thread::sleep(PULL_PAUSE);
    }
}

/// What came of a pull: the version of row 0 of each owner, the error, or what is wrong.
fn judge(me: usize, table: &ShardedTable, ids: &[u64], pulled: Result<PulledRows, Unreceived>) -> Outcome {
    let PulledRows { rows, missing, .. } = match pulled {
        Ok(pulled) => pulled,
        Err(unreceived) => return Outcome::failed(&unreceived.error),
    };
    let missing: Vec<u32> = missing.into_iter().flat_map(|missing| missing.places).collect();
    if rows.shape()[..] != [ids.len() as u64, ROW_BYTES as u64] {
        return Outcome::Wrong(format!("rows of shape {:?}", rows.shape()));
    }
    let mut versions = [None; 2];
    for (place, (&id, row)) in ids.iter().zip(rows.bytes().chunks(ROW_BYTES)).enumerate() {
        let (owner, local) = table.sharding().place(id);
        if missing.contains(&(place as u32)) {
            continue;
        }
        let wanted = Label { kind: Kind::Row, from: owners(me)[owner], life: 0, number: 0, key: local as u32 };
        match read_bytes(row, wanted) {
            Ok(label) if local == 0 => versions[owner] = Some(label.number as i64),
            Ok(_) => {}
            Err(how) => return Outcome::Wrong(format!("row {local} of task{}: {how}", wanted.from)),
        }
    }
    Outcome::Pulled(versions.to_vec())
}

/// Pushes rows to two owners at once, added up. The numbers of a row are its own in the whole table, and one.
pub(super) fn push(actor: &Actor) {
    let table = sharded(actor.me);
    while !actor.orders.is_over(now_us()) {
        thread::sleep(actor.orders.rest_for());
        let ids = named(now_us());
        let numbers: Vec<f32> = ids.iter().flat_map(|&id| [id as f32 + 1.; NUMBERS]).collect();
        let options = SendOptions { timeout: Some(TIMEOUT) };
        let call = actor.ledger.begin(What::PushRows { to: owners(actor.me) }, TIMEOUT);
        let pushed = Tensor::from_elements(&[ids.len() as u64, NUMBERS as u64], &numbers)
            .and_then(|rows| {
                actor.task.push_rows(QUEUE, TableRows { table: &table, ids: &ids, rows: &rows }, SumRows::Yes, &options)
            })
            .and_then(|pushing| pushing.wait());
        actor.ledger.end(call, pushed);
        thread::sleep(PUSH_PAUSE);
    }
}

/// Accepts rows that come.
pub(super) fn accept(actor: &Actor) {
    let acceptor = actor.task.acceptor(QUEUE, AcceptOptions::default());
    let afterwards = AFTERWARDS.as_micros() as u64;
    while !actor.orders.is_over(now_us().saturating_sub(afterwards)) {
        let call = actor.ledger.begin(What::AcceptRows, ACCEPT_TIMEOUT);
        let accepted = acceptor.accept_many(usize::MAX).wait_within(ACCEPT_TIMEOUT);
        let is_refused = accepted.is_err();
        let outcome = match accepted {
            Ok(accepted) => {
                let count = accepted.len();
                let wrong = accepted.into_iter().find_map(|accepted| took(actor.me, accepted).err());
                wrong.map_or(Outcome::Took(count), Outcome::Wrong)
            }
            Err(error) => Outcome::failed(&error),
        };
        actor.ledger.end(call, outcome);
        if is_refused {
            thread::sleep(PUSH_PAUSE);
        }
    }
}

/// Looks at rows that were pushed to this task.
fn took(me: usize, accepted: Accepted) -> Result<(), String> {
    let from = accepted.from.clone();
    let owner = number(&from).and_then(|pusher| owners(pusher).iter().position(|&owner| owner == me));
    let Some(owner) = owner else { return Err(format!("rows of {from}, which pushes none here")) };
    let updates = RowUpdate::all_of(accepted).map_err(|error| format!("of {from}: {error}"))?;
    let [RowUpdate { ids, rows, .. }] = &updates[..] else {
        return Err(format!("rows of {} tables of {from}, which pushes those of one", updates.len()));
    };
    let numbers = rows.elements::<f32>().map_err(|error| format!("of {from}: {error}"))?;
    let sharding = sharded(me).sharding().clone();
    for (&id, row) in ids.iter().zip(numbers.chunks(NUMBERS)) {
        let times = row[0] / (sharding.row(owner, id) as f32 + 1.);
        let whole =
            row.iter().all(|&number| number == row[0]) && (1. ..=NAMED as f32).contains(&times) && times.fract() == 0.;
        if !whole || id >= ROWS {
            return Err(format!("row {id} of {from} is {row:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulled(change: impl Fn(&mut [u8])) -> Outcome {
        let (table, ids) = (sharded(0), [0, 1, 7]);
        let mut bytes = vec![0; ids.len() * ROW_BYTES];
        for (&id, row) in ids.iter().zip(bytes.chunks_mut(ROW_BYTES)) {
            let (owner, local) = table.sharding().place(id);
            let from = owners(0)[owner];
            fill(row, &Label { kind: Kind::Row, from, life: 1, number: 40 + id, key: local as u32 }.head(ROW_BYTES));
        }
        change(&mut bytes);
        let rows = Tensor::from_elements(&[3, ROW_BYTES as u64], &bytes).unwrap();
        judge(0, &table, &ids, Ok(PulledRows { rows, missing: Vec::new(), asked: 3 }))
    }

    #[test]
    fn rows_that_are_torn_or_in_each_others_place_are_wrong() {
        assert_eq!(pulled(|_| ()), Outcome::Pulled(vec![Some(40), Some(41)]));
        for at in [0, 15, 16, 100, ROW_BYTES - 1, 3 * ROW_BYTES - 1] {
            assert!(matches!(pulled(|bytes| bytes[at] ^= 1), Outcome::Wrong(_)), "{at}");
        }
        let (first, third) = (0..ROW_BYTES, 2 * ROW_BYTES);
        assert!(matches!(pulled(|bytes| bytes.copy_within(first.clone(), third)), Outcome::Wrong(_)));
    }
}
