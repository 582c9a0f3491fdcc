//! What is requested from one owner: rows of all tables of a call, in as few requests as possible. Pure.

use std::{collections::VecDeque, ops::Range};

use sealane_transport::{limits::ROW_IDS_MAX, named_rows::NamedRowsBuf};

use super::{
    shares::Share,
    viewing::{self, Viewed},
};
use crate::{
    Receiving,
    limits::{ROW_REQUESTS_MAX, ROWS_IN_FLIGHT_BYTES, ROWS_REQUEST_BYTES},
};

/// Rows of one table that are wanted from an owner.
pub(super) struct Wanted {
    /// The number of the table in the call, and its key.
    pub(super) table: usize,
    pub(super) key: Box<str>,
    pub(super) share: Share,
    /// Index in the share of the first row not requested yet; `None` if all were.
    next: Option<usize>,
    /// One row was requested, to learn the size of rows.
    is_probed: bool,
}

/// Consecutive rows of one table in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Index in the owner's `wanted`.
    pub(super) wanted: usize,
    /// Index of its first row in the share, and the number of rows.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A pending request.
pub(super) struct Asked {
    pub(super) spans: Vec<Span>,
    pub(super) receiving: Receiving,
}

/// What is wanted from one owner, and how far that is.
pub(super) struct Owner {
    pub(super) name: Box<str>,
    pub(super) wanted: Vec<Wanted>,
    /// Pending requests, oldest first.
    pub(super) asked: VecDeque<Asked>,
    /// Number of requests sent.
    pub(super) requests: usize,
    /// Rows that this process reads itself if it may: those whose places are yet to be asked for, and those whose places were.
    pub(super) viewed: Vec<Viewed>,
    pub(super) located: VecDeque<viewing::Asked>,
    /// Rows of unknown size are requested one by one: together they were too large for one answer.
    probes_alone: bool,
}

impl Wanted {
    pub(super) fn new(table: usize, key: &str, share: Share) -> Self {
        Self { table, key: key.into(), share, next: Some(0), is_probed: false }
    }

    /// Rows of it have come, or never will.
    pub(super) fn came(&mut self) {
        self.is_probed = false;
    }

    /// Requests nothing more of it; returns the rows in the share that were not requested, `None` if all were.
    pub(super) fn stop(&mut self) -> Option<Range<usize>> {
        Some(self.next.take()?..self.share.rows.len())
    }
}

impl Owner {
    pub(super) fn new(name: &str) -> Self {
        let (wanted, asked, viewed, located) = Default::default();
        Self { name: name.into(), wanted, asked, requests: 0, viewed, located, probes_alone: false }
    }

    /// True if a request is pending.
    pub(super) fn is_asked(&self) -> bool {
        !(self.asked.is_empty() && self.located.is_empty())
    }

    /// Cancels all requests.
    pub(super) fn forget(&mut self) {
        self.wanted.clear();
        self.asked.clear();
        self.viewed.clear();
        self.located.clear();
    }

    /// True if more is to be requested.
    pub(super) fn has_more(&self) -> bool {
        self.wanted.iter().any(|wanted| wanted.next.is_some())
    }

    /// The probes of a request were too large together: they are repeated one by one. False if that would not help.
    pub(super) fn probe_alone(&mut self, spans: &[Span], row_bytes: impl Fn(usize) -> Option<usize>) -> bool {
        if spans.len() < 2 || spans.iter().any(|span| row_bytes(self.wanted[span.wanted].table).is_some()) {
            return false;
        }
        spans.iter().for_each(|span| self.wanted[span.wanted].next = Some(span.first));
        self.probes_alone = true;
        true
    }

    /// The next requests, as many as may be in flight if the call asks so many owners; with `full`, only those into which no further table
    /// would fit. `row_bytes` gives the size of a table's rows, if known.
    pub(super) fn next_requests(
        &mut self,
        owners: usize,
        full: bool,
        row_bytes: impl Fn(usize) -> Option<usize>,
    ) -> Vec<(NamedRowsBuf, Vec<Span>)> {
        let most_in_flight = ROWS_IN_FLIGHT_BYTES / owners;
        // One request is gathered while another is copied to its places.
        let most_at_once = ROWS_REQUEST_BYTES.min(most_in_flight / 2);
        let to_ask = |wanted: &Wanted| {
            let rest = wanted.share.rows.len() - wanted.next.unwrap_or(wanted.share.rows.len());
            rest * row_bytes(wanted.table).unwrap_or(0)
        };
        let bytes_of = |wanted: &[Wanted], spans: &[Span]| -> usize {
            let bytes = |span: &Span| span.count * row_bytes(wanted[span.wanted].table).unwrap_or(0);
            spans.iter().map(bytes).sum()
        };
        let mut in_flight = self.asked.iter().map(|asked| bytes_of(&self.wanted, &asked.spans)).sum::<usize>();
        let mut requests = Vec::new();
        while self.asked.len() + requests.len() < (ROW_REQUESTS_MAX / owners).max(1)
            && (in_flight == 0 || in_flight + most_at_once <= most_in_flight)
            && (!full || self.wanted.iter().map(to_ask).sum::<usize>() >= most_at_once)
        {
            let Some((named, spans)) = self.next_request(most_at_once, &row_bytes) else { break };
            in_flight += bytes_of(&self.wanted, &spans);
            requests.push((named, spans));
        }
        requests
    }

    /// The next request, of at most so many bytes including what the answer says of each table, but at least one row. For tables with
    /// unknown row size, a separate request asks for one row each.
    fn next_request(
        &mut self,
        bytes: usize,
        row_bytes: impl Fn(usize) -> Option<usize>,
    ) -> Option<(NamedRowsBuf, Vec<Span>)> {
        let (mut named, mut spans, mut room) = (NamedRowsBuf::default(), Vec::new(), bytes);
        let mut probes = false;
        for (at, wanted) in self.wanted.iter_mut().enumerate() {
            let Some(first) = wanted.next else { continue };
            let row_bytes = row_bytes(wanted.table);
            let fit = match row_bytes {
                Some(_) if probes => continue,
                Some(row_bytes) => room.saturating_sub(HEAD_BYTES) / row_bytes.max(1),
                None if wanted.is_probed || !(probes || spans.is_empty()) => continue,
                None => 1,
            };
            probes = row_bytes.is_none();
            let fit = if spans.is_empty() { fit.max(1) } else { fit };
            let rest = &wanted.share.rows[first..];
            let most = rest.len().min(fit).min(ROW_IDS_MAX);
            if most == 0 && !rest.is_empty() {
                break;
            }
            let places = |count| wanted.share.places_of_all(first..first + count).len() as u32;
            let Some(count) = named.name(&wanted.key, &rest[..most], places) else { break };
            wanted.next = (count < rest.len()).then_some(first + count);
            wanted.is_probed = row_bytes.is_none();
            spans.push(Span { wanted: at, first, count });
            room = room.saturating_sub(HEAD_BYTES + count * row_bytes.unwrap_or(0));
            if probes && self.probes_alone {
                break;
            }
        }
        (!spans.is_empty()).then_some((named, spans))
    }
}

/// Bytes that an answer has about a table whose rows have up to five dimensions, with the gap before its rows.
const HEAD_BYTES: usize = 192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{ShardedTable, shares::split};

    /// An owner with one table for each row count.
    fn owner(rows: &[u64]) -> Owner {
        let mut owner = Owner::new("ps:1");
        for (number, &rows) in rows.iter().enumerate() {
            let table = ShardedTable::of("ps:1", "t").unwrap();
            let mut shares = split(&table, &(0..rows).collect::<Vec<_>>()).unwrap();
            let share = shares.pop().map_or_else(Share::empty, |part| part.share());
            owner.wanted.push(Wanted::new(number, &number.to_string(), share));
        }
        owner
    }

    /// The spans of each request: (table, first row, rows).
    fn spans(requests: &[(NamedRowsBuf, Vec<Span>)]) -> Vec<Vec<(usize, usize, usize)>> {
        let of_one = |(named, spans): &(NamedRowsBuf, Vec<Span>)| {
            let counts: Vec<usize> = named.as_rows().iter().map(|table| table.ids.len()).collect();
            assert_eq!(counts, spans.iter().map(|span| span.count).collect::<Vec<_>>());
            spans.iter().map(|span| (span.wanted, span.first, span.count)).collect()
        };
        requests.iter().map(of_one).collect()
    }

    #[test]
    fn many_small_tables_are_one_request() {
        let mut owner = owner(&[5, 0, 9]);
        assert!(owner.next_requests(1, true, |_| Some(64)).is_empty(), "more of them would fit");
        assert_eq!(spans(&owner.next_requests(1, false, |_| Some(64))), [[(0, 0, 5), (1, 0, 0), (2, 0, 9)]]);
        assert!(!owner.has_more() && owner.next_requests(1, false, |_| Some(64)).is_empty());
    }

    #[test]
    fn rows_of_unknown_size_are_probed_by_themselves() {
        let mut owner = owner(&[5, 3, 1]);
        let known = |table: usize| (table == 1).then_some(64);
        let requests = owner.next_requests(1, false, known);
        assert_eq!(spans(&requests), [vec![(0, 0, 1), (2, 0, 1)], vec![(1, 0, 3)]]);
        assert!(owner.has_more() && owner.next_requests(1, false, known).is_empty(), "it is probed once");
        // Together their rows were too large for one answer, so they are asked for one by one.
        owner.wanted.iter_mut().for_each(Wanted::came);
        assert!(!owner.probe_alone(&requests[1].1, known) && owner.probe_alone(&requests[0].1, known));
        let again = owner.next_requests(1, false, known);
        assert_eq!(spans(&again), [[(0, 0, 1)], [(2, 0, 1)]]);
        assert!(!owner.probe_alone(&again[0].1, known), "it is alone");
        assert_eq!(spans(&owner.next_requests(1, false, |_| Some(64))), [[(0, 1, 4)]]);
    }

    #[test]
    fn a_request_ends_where_its_rows_are_too_many_or_too_large() {
        let mut large = owner(&[3, 2]);
        let requests = large.next_requests(1, false, |_| Some(ROWS_REQUEST_BYTES * 3 / 4));
        let few = (ROWS_IN_FLIGHT_BYTES - ROWS_REQUEST_BYTES) / (ROWS_REQUEST_BYTES * 3 / 4) + 1;
        assert_eq!(requests.len(), few.min(5));
        assert_eq!(spans(&requests)[0], [(0, 0, 1)]);
        let mut many = owner(&[3 * ROW_IDS_MAX as u64]);
        assert_eq!(spans(&many.next_requests(1, false, |_| Some(4)))[1], [(0, ROW_IDS_MAX, ROW_IDS_MAX)]);
        let mut huge = owner(&[2]);
        assert_eq!(spans(&huge.next_requests(1, false, |_| Some(1 << 30))), [[(0, 0, 1)]], "one is always asked for");
    }
}
