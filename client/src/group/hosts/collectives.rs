//! The collectives of a group: rounds on one host, and with several hosts, what their ranks exchange between these.
//!
//! Each host combines its ranks' tensors; counterparts exchange the results; each host hands them to its ranks. Reductions fold the ranks
//! of a host in their order, then the hosts in theirs, each element in one place of a host and in the same way on all: so all ranks have
//! the same bits, and the same in each run. Of a large tensor each lane reduces a part, and of that each host a part again, which it sends
//! to the others (reduce-scatter, then all-gather); three pieces are in progress at once.

use std::{ops::Range, time::Instant};

use sealane_runtime::copy_bytes;
use sealane_transport::{Error, shm::group::SLOT_BYTES};

use super::Hosts;
use crate::{
    group::limits::GROUP_ONE_SHOT_BYTES,
    group::{
        call::Call,
        collectives::{fold_all, piece, share},
        reduce::Reduction,
        rounds::{Rounds, part_of_slot, rounds_of},
    },
};

pub(in crate::group) struct Collectives {
    rounds: Rounds,
    /// `None` if there is only one host.
    hosts: Option<Hosts>,
}

/// Whose tensors a reduction changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::group) enum Wants {
    /// This rank's.
    Result,
    /// Not this rank's: it only takes part.
    Nothing,
}

impl Collectives {
    pub(in crate::group) fn new(rounds: Rounds) -> Collectives {
        Collectives { rounds, hosts: None }
    }

    pub(in crate::group) fn add_hosts(&mut self, hosts: Hosts) {
        self.hosts = Some(hosts);
    }

    pub(in crate::group) fn begin(&mut self, call: &Call, until: Option<Instant>) -> Result<(), Error> {
        let words = self.rounds.begin(call, until)?;
        if let Some(hosts) = &mut self.hosts {
            hosts.begin(words, until);
        }
        Ok(())
    }

    pub(in crate::group) fn barrier(&mut self) -> Result<(), Error> {
        self.rounds.barrier()?;
        match &mut self.hosts {
            Some(hosts) => hosts.with_counterparts(&[], |_, _| Ok(())),
            None => Ok(()),
        }
    }

    /// Copies `data` of rank `root` to all.
    pub(in crate::group) fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), Error> {
        let Some(hosts) = &mut self.hosts else { return self.rounds.broadcast(data, root) };
        let layout = hosts.layout();
        let (own, root_host) = (layout.own_host(), layout.host_of(root));
        let entry = layout.entry(own, root);
        let source = layout.local(entry).expect("a host's entry is one of its ranks");
        let (above, below) = layout.tree(own, root_host);
        let above = above.map(|host| layout.entry(host, root));
        let below: Vec<usize> = below.into_iter().map(|host| layout.entry(host, root)).collect();
        let is_entry = entry == layout.rank();
        for number in 0..rounds_of(data.len(), SLOT_BYTES) {
            let range = piece(data.len(), SLOT_BYTES, number);
            let data = &mut data[range];
            if is_entry {
                if let Some(above) = above {
                    hosts.recv(above, data)?;
                }
                below.iter().try_for_each(|rank| hosts.send(*rank, data))?;
            }
            self.rounds.broadcast(data, source)?;
        }
        hosts.flush()
    }

    /// Reduces `data` of all ranks, for all; elements have `element` bytes.
    pub(in crate::group) fn all_reduce(
        &mut self,
        data: &mut [u8],
        element: usize,
        reduction: &Reduction,
        wants: Wants,
    ) -> Result<(), Error> {
        let is_small = data.len() <= GROUP_ONE_SHOT_BYTES;
        match &mut self.hosts {
            None if is_small => self.rounds.reduce_at_once(data, reduction, wants),
            None => self.rounds.reduce_by_parts(data, element, reduction, wants),
            Some(_) if is_small => self.reduce_at_once(data, reduction, wants),
            Some(_) => self.reduce_by_parts(data, element, reduction, wants),
        }
    }

    /// Every rank has its host's result, and exchanges it for those of the other hosts.
    fn reduce_at_once(&mut self, data: &mut [u8], reduction: &Reduction, wants: Wants) -> Result<(), Error> {
        let Collectives { rounds, hosts: Some(hosts) } = self else { unreachable!("there are several hosts") };
        let (count, len) = (hosts.layout().hosts(), data.len());
        let mut made = vec![0; count * len];
        let own = hosts.layout().own_host() * len..(hosts.layout().own_host() + 1) * len;
        copy_bytes(&mut made[own.clone()], data);
        rounds.reduce_at_once(&mut made[own.clone()], &reduction.partial(), Wants::Result)?;
        let mine = made[own].to_vec();
        hosts.with_counterparts(&mine, |hosts, rank| {
            let host = hosts.layout().host_of(rank);
            hosts.recv(rank, &mut made[host * len..][..len])
        })?;
        if wants == Wants::Result {
            fold_all(data, count, reduction, |host| Ok(&made[host * len..][..len]))?;
        }
        Ok(())
    }

    fn reduce_by_parts(
        &mut self,
        data: &mut [u8],
        element: usize,
        reduction: &Reduction,
        wants: Wants,
    ) -> Result<(), Error> {
        let Collectives { rounds, hosts: Some(hosts) } = self else { unreachable!("there are several hosts") };
        let (lane, lanes) = (hosts.layout().own_index(), hosts.layout().lanes());
        let (own, count) = (hosts.layout().own_host(), hosts.layout().hosts());
        // The ranks at the same place of the other hosts, which reduce the same part.
        let others: Vec<(usize, usize)> = match lane < lanes {
            true => hosts.layout().other_hosts().map(|host| (host, hosts.layout().at(host, lane))).collect(),
            false => Vec::new(),
        };
        let of_host = |part: &[u8], host: usize| share(part.len(), element, host, count);
        let pieces = rounds_of(data.len(), SLOT_BYTES);
        let mut parts: [Vec<u8>; 3] = Default::default();
        let mut theirs = vec![Vec::new(); count];
        let mut posted = rounds.give_piece(data, element, lanes, 0)?;
        for number in 0..pieces + 2 {
            if number < pieces {
                let given = posted;
                if number + 1 < pieces {
                    posted = rounds.give_piece(data, element, lanes, number + 1)?;
                }
                let part = &mut parts[number % 3];
                let piece = &data[piece(data.len(), SLOT_BYTES, number)];
                let range = share(piece.len(), element, lane, lanes);
                part.resize(range.len(), 0);
                rounds.fold_part(piece, range, given, part, &reduction.partial())?;
                for (host, rank) in &others {
                    hosts.send(*rank, &part[of_host(part, *host)])?;
                }
            }
            if let Some(number) = number.checked_sub(1).filter(|number| *number < pieces) {
                let part = &mut parts[number % 3];
                let mine = of_host(part, own);
                for (host, rank) in &others {
                    theirs[*host].resize(mine.len(), 0);
                    hosts.recv(*rank, &mut theirs[*host])?;
                }
                if !others.is_empty() {
                    let mut folded = std::mem::take(&mut theirs[own]);
                    folded.resize(mine.len(), 0);
                    fold_all(&mut folded, count, reduction, |host| match host == own {
                        true => Ok(&part[mine.clone()]),
                        false => Ok(&theirs[host][..]),
                    })?;
                    copy_bytes(&mut part[mine.clone()], &folded);
                    theirs[own] = folded;
                }
                others.iter().try_for_each(|(_, rank)| hosts.send(*rank, &part[mine.clone()]))?;
            }
            if let Some(number) = number.checked_sub(2).filter(|number| *number < pieces) {
                let part = &mut parts[number % 3];
                for (host, rank) in &others {
                    let range = of_host(part, *host);
                    hosts.recv(*rank, &mut part[range])?;
                }
                let range = piece(data.len(), SLOT_BYTES, number);
                rounds.spread_part(&mut data[range], element, lanes, part, wants)?;
            }
        }
        hosts.flush()
    }

    /// Each rank has a part for each rank in `from`, and gets in `to` the reduction of those meant for it.
    pub(in crate::group) fn reduce_scatter(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        reduction: &Reduction,
    ) -> Result<(), Error> {
        let Collectives { rounds, hosts: Some(hosts) } = self else {
            return self.rounds.reduce_scatter(from, to, reduction);
        };
        let (len, own, count) = (to.len(), hosts.layout().rank(), hosts.layout().hosts());
        let per = part_of_slot(hosts.layout().size());
        // The ranks for which this one reduces its host's parts.
        let targets: Vec<usize> = std::iter::once(own).chain(hosts.layout().counterpart_of()).collect();
        let sources: Vec<usize> = hosts.layout().counterparts().collect();
        let own_host = hosts.layout().own_host();
        let mut made = [vec![0; targets.len() * per], vec![0; targets.len() * per]];
        let mut theirs = vec![0; count * per];
        let pieces = rounds_of(len, per);
        for number in 0..=pieces {
            if number < pieces {
                let (piece, made) = (piece(len, per, number), &mut made[number & 1]);
                rounds.reduce_parts(from, (len, piece.clone(), per), &targets, made, &reduction.partial())?;
                for (made, rank) in made.chunks(per).zip(&targets).skip(1) {
                    hosts.send(*rank, &made[..piece.len()])?;
                }
            }
            if let Some(number) = number.checked_sub(1) {
                let piece = piece(len, per, number);
                for rank in &sources {
                    let host = hosts.layout().host_of(*rank);
                    hosts.recv(*rank, &mut theirs[host * per..][..piece.len()])?;
                }
                let mine = &made[number & 1][..piece.len()];
                fold_all(&mut to[piece], count, reduction, |host| match host == own_host {
                    true => Ok(mine),
                    false => Ok(&theirs[host * per..][..mine.len()]),
                })?;
            }
        }
        hosts.flush()
    }

    /// `whole` has a part for each rank, with this rank's own in place.
    pub(in crate::group) fn all_gather(&mut self, whole: &mut [u8]) -> Result<(), Error> {
        let Some(hosts) = &mut self.hosts else {
            let held: Vec<Vec<usize>> = (0..self.rounds.members().size()).map(|rank| vec![rank]).collect();
            return self.rounds.all_gather(whole, &held);
        };
        let layout = hosts.layout();
        let (part, own) = (whole.len() / layout.size(), layout.rank());
        let (to, from): (Vec<usize>, Vec<usize>) = (layout.counterparts().collect(), layout.counterpart_of().collect());
        // The parts that each rank of this host has then.
        let held: Vec<Vec<usize>> = layout.held();
        hosts.by_pieces(
            part,
            whole,
            |hosts, whole, number| {
                let mine = &whole[own * part..][piece(part, SLOT_BYTES, number)];
                to.iter().try_for_each(|rank| hosts.send(*rank, mine))
            },
            |hosts, whole, number| {
                let piece = piece(part, SLOT_BYTES, number);
                from.iter().try_for_each(|rank| hosts.recv(*rank, &mut whole[*rank * part..][piece.clone()]))
            },
        )?;
        self.rounds.all_gather(whole, &held)
    }

    /// Collects the `part` of each rank in `whole` of one rank, which has its own part there already.
    pub(in crate::group) fn gather(
        &mut self,
        part: &[u8],
        mut whole: Option<&mut [u8]>,
        root: usize,
    ) -> Result<(), Error> {
        let Some(hosts) = &mut self.hosts else { return self.rounds.gather(part, whole) };
        let far: Vec<usize> = hosts.layout().far().collect();
        let is_far = hosts.layout().local(root).is_none();
        if !is_far {
            self.rounds.gather(part, whole.as_deref_mut())?;
        }
        hosts.by_pieces(
            part.len(),
            &mut whole,
            |hosts, _, number| match is_far {
                true => hosts.send(root, &part[piece(part.len(), SLOT_BYTES, number)]),
                false => Ok(()),
            },
            |hosts, whole, number| {
                let Some(whole) = whole else { return Ok(()) };
                let piece = piece(part.len(), SLOT_BYTES, number);
                far.iter().try_for_each(|rank| hosts.recv(*rank, &mut whole[rank * part.len()..][piece.clone()]))
            },
        )
    }

    /// Gives each rank its `part` of `whole`, which one rank has.
    pub(in crate::group) fn scatter(
        &mut self,
        whole: Option<&[u8]>,
        part: &mut [u8],
        root: usize,
    ) -> Result<(), Error> {
        let Some(hosts) = &mut self.hosts else { return self.rounds.scatter(whole, part, root) };
        let (far, len): (Vec<usize>, usize) = (hosts.layout().far().collect(), part.len());
        let local = hosts.layout().local(root);
        hosts.by_pieces(
            len,
            part,
            |hosts, _, number| {
                let Some(whole) = whole else { return Ok(()) };
                let piece = piece(len, SLOT_BYTES, number);
                far.iter().try_for_each(|rank| hosts.send(*rank, &whole[rank * len..][piece.clone()]))
            },
            |hosts, part, number| match local {
                Some(_) => Ok(()),
                None => hosts.recv(root, &mut part[piece(len, SLOT_BYTES, number)]),
            },
        )?;
        match local {
            Some(root) => self.rounds.scatter(whole, part, root),
            None => Ok(()),
        }
    }

    /// Each rank has a part for each rank in `from`, and gets one of each in `to`, all of one length.
    pub(in crate::group) fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), Error> {
        let size = self.hosts.as_ref().map_or(self.rounds.members().size(), |hosts| hosts.layout().size());
        let len = from.len() / size;
        let places: Vec<Range<usize>> = (0..size).map(|rank| rank * len..(rank + 1) * len).collect();
        self.all_to_all_parts(from, to, (&places, &places), len)
    }

    /// [`all_to_all`](Self::all_to_all) with parts of any length, which the receivers must expect.
    pub(in crate::group) fn all_to_all_uneven(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        (given, wanted): (&[Range<usize>], &[Range<usize>]),
    ) -> Result<(), Error> {
        let (size, own) = (given.len(), self.rounds.members().number());
        let lengths: Vec<u8> = given.iter().flat_map(|part| (part.len() as u64).to_ne_bytes()).collect();
        let mut table = vec![0; lengths.len() * size];
        table[own * lengths.len()..][..lengths.len()].copy_from_slice(&lengths);
        self.all_gather(&mut table)?;
        let table = table.as_chunks::<8>().0;
        let length = |from: usize, to: usize| u64::from_ne_bytes(table[from * size + to]);
        for (rank, part) in wanted.iter().enumerate() {
            if length(rank, own) != part.len() as u64 {
                let gives = length(rank, own);
                let reason = format!("rank {rank} gives rank {own} {gives} bytes, which expects {}", part.len());
                return Err(self.rounds.members().fail(Error::invalid(reason)));
            }
        }
        let longest = (0..size * size).filter(|pair| pair / size != pair % size);
        let longest = longest.map(|pair| length(pair / size, pair % size)).max().unwrap_or(0);
        self.all_to_all_parts(from, to, (given, wanted), usize::try_from(longest).unwrap_or(usize::MAX))
    }

    /// `longest` is the longest part of all ranks.
    fn all_to_all_parts(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        (given, wanted): (&[Range<usize>], &[Range<usize>]),
        longest: usize,
    ) -> Result<(), Error> {
        self.rounds.all_to_all_parts(from, to, (given, wanted), longest)?;
        let Some(hosts) = &mut self.hosts else { return Ok(()) };
        let far: Vec<usize> = hosts.layout().far().collect();
        hosts.by_pieces(
            longest,
            to,
            |hosts, _, number| {
                far.iter().try_for_each(|rank| {
                    let part = given[*rank].clone();
                    hosts.send(*rank, &from[part.clone()][piece(part.len(), SLOT_BYTES, number)])
                })
            },
            |hosts, to, number| {
                far.iter().rev().try_for_each(|rank| {
                    let part = wanted[*rank].clone();
                    hosts.recv(*rank, &mut to[part.clone()][piece(part.len(), SLOT_BYTES, number)])
                })
            },
        )
    }
}

impl Hosts {
    /// Sends `bytes` to all whose counterpart this rank is, and takes what this rank's counterparts send.
    fn with_counterparts(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&mut Hosts, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (to, from): (Vec<usize>, Vec<usize>) =
            (self.layout().counterpart_of().collect(), self.layout().counterparts().collect());
        to.iter().try_for_each(|rank| self.send(*rank, bytes))?;
        for rank in from {
            // The calls are compared even if there are no bytes.
            self.recv(rank, &mut [])?;
            take(self, rank)?;
        }
        self.flush()
    }

    /// Sends and receives parts by pieces; the longest part has so many bytes. Each piece is sent before the one before it is received.
    fn by_pieces<D: ?Sized>(
        &mut self,
        longest: usize,
        data: &mut D,
        send: impl Fn(&mut Hosts, &D, usize) -> Result<(), Error>,
        recv: impl Fn(&mut Hosts, &mut D, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let pieces = rounds_of(longest, SLOT_BYTES);
        send(self, data, 0)?;
        for number in 0..pieces {
            if number + 1 < pieces {
                send(self, data, number + 1)?;
            }
            recv(self, data, number)?;
        }
        self.flush()
    }
}
