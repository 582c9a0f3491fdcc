//! Tables: every task writes rows of its own in a loop, pulls those of two others by one call, and pushes rows to both. A row
//! contains its writer and version; versions are ticks of the clock, and row 0 is written in each.

use std::ops::RangeInclusive;
use std::time::Duration;

use sealane::{
    AcceptOptions, Accepted, Buffer, DType, Error, PulledRows, RowUpdate, RowsOptions, RowsWanted, SendOptions,
    ShardedTable, Sharding, SumRows, Table, TableOptions, TableRows, Tensor, TensorMeta, Unreceived,
};

use super::ledger::{Kind, Outcome, What, now_us};
use super::tensors::{Label, mix};
use super::{Actor, CALL_TIMEOUT, PULL_PAUSE, name, number, owners};

const KEY: &str = "table";
const QUEUE: &str = "rows";

/// Rows of a task's table, and bytes of each.
const ROWS: u64 = 500;
const ROW_BYTES: usize = 200;

/// Duration of a version, in microseconds, and the number of rows written in each.
const VERSION_US: u64 = 40_000;
const WRITTEN: u64 = 25;

/// Once in this many versions, the writer checks that its rows are as it wrote them.
const COMPARED: u64 = 8;

/// Rows of one pull or push; some are named twice.
const NAMED: u64 = 120;

/// A stopped daemon keeps nobody from writing for longer.
const COMPARED_WITHIN: Duration = Duration::from_millis(200);

const PUSH_PAUSE: Duration = Duration::from_millis(100);

const NUMBERS: usize = 8;

/// Writes rows of a table, version after version, and returns it. What was written stays, however often daemons are restarted.
pub(super) fn write(actor: &Actor) -> Option<Table> {
    let mut own = Own { table: None, written: vec![0..=0; ROWS as usize] };
    actor.each_version(VERSION_US, |version| {
        actor.ledger.call(What::new(Kind::WriteRows, &[], version as i64), Duration::ZERO, || {
            let outcome = own.write(actor, version);
            let lost = if version.is_multiple_of(COMPARED) { own.compare(actor) } else { None };
            lost.map_or_else(|| outcome.into(), Outcome::Wrong)
        });
    });
    own.table
}

/// A task's table, and the versions in which each row may have been written last: a failed write may have written it.
struct Own {
    table: Option<Table>,
    written: Vec<RangeInclusive<u64>>,
}

impl Own {
    fn write(&mut self, actor: &Actor, version: u64) -> Result<(), Error> {
        let Some(table) = &mut self.table else {
            let all: Vec<u64> = (0..ROWS).collect();
            let options = TableOptions { version: version as i64, torn: false };
            self.table = Some(actor.task.publish_table(KEY, rows(actor, &all, version)?, options)?);
            self.written.fill(version..=version);
            return Ok(());
        };
        let mut ids: Vec<u64> = (1..WRITTEN).map(|at| mix(version, at) % ROWS).collect();
        ids.push(0);
        let rows = rows(actor, &ids, version)?;
        let mut note = |from: Option<u64>| {
            for &id in &ids {
                let row = &mut self.written[id as usize];
                *row = from.unwrap_or(*row.start())..=version;
            }
        };
        note(None);
        table.update(&ids, &rows)?;
        note(Some(version));
        table.set_version(version as i64)
    }

    /// Finds a row of the table that is not as it was written, as others would pull it. Nobody else writes it.
    fn compare(&self, actor: &Actor) -> Option<String> {
        self.table.as_ref()?;
        let sharding = Sharding::modulo(ROWS, 1).expect("it has rows and an owner");
        let table = ShardedTable::new(KEY, [name(actor.me)], sharding).expect("an owner, and a short key");
        let ids: Vec<u64> = (0..ROWS).collect();
        let wanted = RowsWanted { table: &table, ids: &ids, out: None };
        let options = RowsOptions { timeout: Some(COMPARED_WITHIN), ..RowsOptions::default() };
        // Its daemon may be down.
        let pulled = actor.task.pull_rows_into(wanted, &options).wait().ok()?;
        for (id, (row, written)) in pulled.rows.bytes().chunks(ROW_BYTES).zip(&self.written).enumerate() {
            let label = Label::of(Kind::WriteRows, actor.me, 0, id as u32);
            match label.read_bytes(row) {
                Ok(label) if written.contains(&label.number) => {}
                Ok(label) => {
                    return Some(format!("row {id} is of version {}, and was written in {written:?}", label.number));
                }
                Err(how) => return Some(format!("row {id}: {how}")),
            }
        }
        None
    }
}

fn rows(actor: &Actor, ids: &[u64], version: u64) -> Result<Tensor, Error> {
    let row = |&id: &u64| {
        Label { life: actor.life, ..Label::of(Kind::WriteRows, actor.me, version, id as u32) }.bytes(ROW_BYTES)
    };
    let bytes = ids.iter().flat_map(row).collect();
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

/// Pulls rows of two tables at once: versions newer than the last, and any version.
pub(super) fn pull(actor: &Actor) {
    let table = sharded(actor.me);
    let mut newest = [i64::MIN; 2];
    actor.again(PULL_PAUSE, |times| {
        let min_version = if times % 2 == 0 { newest[0].min(newest[1]).saturating_add(1) } else { i64::MIN };
        let ids = named(mix(now_us(), times));
        let out = actor.destination(times, ids.len() * ROW_BYTES).map(Into::into);
        let (timeout, partial) = (Some(CALL_TIMEOUT), times % 4 == 0);
        let options = RowsOptions { min_version, timeout, partial, ..RowsOptions::default() };
        actor.ledger.call(What::new(Kind::PullRows, &owners(actor.me), min_version), CALL_TIMEOUT, || {
            let wanted = RowsWanted { table: &table, ids: &ids, out };
            let outcome = judge(actor.me, &table, &ids, actor.task.pull_rows_into(wanted, &options).wait());
            if let Outcome::Pulled(versions) = &outcome {
                let seen = newest.iter_mut().zip(versions);
                seen.for_each(|(newest, version)| *newest = version.map_or(*newest, |version| version.max(*newest)));
            }
            outcome
        });
    });
}

/// The result of a pull: the version of row 0 of each owner, the error, or what is wrong.
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
        let wanted = Label::of(Kind::WriteRows, owners(me)[owner], 0, local as u32);
        match wanted.read_bytes(row) {
            Ok(label) if local == 0 => versions[owner] = Some(label.number as i64),
            Ok(_) => {}
            Err(how) => return Outcome::Wrong(format!("row {local} of task{}: {how}", wanted.from)),
        }
    }
    Outcome::Pulled(versions.to_vec())
}

/// Pushes rows to two owners at once, summed. Every number in a row is that of the row in the whole table, plus one.
pub(super) fn push(actor: &Actor) {
    let table = sharded(actor.me);
    actor.again(PUSH_PAUSE, |_| {
        let ids = named(now_us());
        let numbers: Vec<f32> = ids.iter().flat_map(|&id| [id as f32 + 1.; NUMBERS]).collect();
        let options = SendOptions { timeout: Some(CALL_TIMEOUT) };
        actor.ledger.call(What::new(Kind::PushRows, &owners(actor.me), 0), CALL_TIMEOUT, || {
            let rows = Tensor::from_elements(&[ids.len() as u64, NUMBERS as u64], &numbers)?;
            let rows = TableRows { table: &table, ids: &ids, rows: &rows };
            actor.task.push_rows(QUEUE, rows, SumRows::Yes, &options)?.wait()
        });
    });
}

pub(super) fn accept(actor: &Actor) {
    actor.accept(Kind::AcceptRows, QUEUE, AcceptOptions::default(), |accepted| took(actor.me, accepted));
}

/// Checks rows that were pushed to this task.
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
            row.copy_from_slice(&Label::of(Kind::WriteRows, from, 40 + id, local as u32).bytes(ROW_BYTES));
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
