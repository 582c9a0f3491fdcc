//! Counters of what was gathered, by table. Bounded: further tables are only in the shard's own counters.

use std::sync::Arc;

use hashbrown::{Equivalent, HashMap};

use super::Name;
use crate::limits::TABLES_COUNTED_MAX;
use crate::metrics::{NodeMetrics, SeqLock, TableCounters, TableMetrics};

/// A borrowed [`Name`], to look up with.
#[derive(Hash)]
struct NameOf<'a> {
    producer: u16,
    key: &'a str,
}

impl Equivalent<Name> for NameOf<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        (self.producer, self.key) == (name.producer, &*name.key)
    }
}

/// The counters of all tables; see the module.
#[derive(Default)]
pub(super) struct TableCounts(HashMap<Name, (TableCounters, Arc<TableMetrics>)>);

impl TableCounts {
    /// Counts rows gathered from a table; `task` is its producer's name.
    pub(super) fn count(
        &mut self,
        (producer, task, key): (u16, &str, &str),
        gathered: &TableCounters,
        metrics: &NodeMetrics,
    ) {
        let Self(tables) = self;
        if !tables.contains_key(&NameOf { producer, key }) {
            if tables.len() == TABLES_COUNTED_MAX {
                return;
            }
            let table = TableMetrics { task: task.into(), table: key.into(), counters: SeqLock::default() };
            let table = Arc::new(table);
            metrics.tables.add(&table);
            tables.insert(Name { producer, key: key.into() }, (TableCounters::default(), table));
        }
        let (counters, table) = tables.get_mut(&NameOf { producer, key }).expect("it was just there");
        counters.add(gathered);
        table.counters.write(counters);
    }

    /// A task has ended, or all have.
    pub(super) fn forget(&mut self, task: Option<u16>) {
        self.0.retain(|name, _| task.is_some_and(|task| task != name.producer));
    }
}
