//! This node's tasks, the endpoint map, and the numbers of the tasks and pairs that a node has met.
//!
//! Numbers are assigned once and never change. Bounded by the map and by the tasks here: a pair is one of each.

use std::ops::Index;
use std::sync::Arc;

use hashbrown::HashMap;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};
use sealane_transport::lane::{lane, lane_by, shard_of};
use sealane_transport::limits::{HELLO_BYTES_MAX, TASKS_PER_HELLO};
use sealane_transport::session::Roster;
use sealane_transport::{Error, Handle};

/// Stands for a peer's task that this side's endpoint map does not name.
pub(super) const STRANGER: u32 = u32::MAX;

/// A task, of another engine or of this one, in the role of a peer.
struct PeerTask {
    name: TaskName,
    address: TransportAddress,
    pairs: Vec<u32>,
}

/// A local task and a peer task.
pub(super) struct Pair {
    pub(super) local: u16,
    pub(super) peer: u32,
    /// The lane by which this shard reaches the peer.
    pub(super) lane: u32,
    /// The local task's name, for those who receive its tensors.
    pub(super) local_name: Arc<str>,
    /// False if another shard of this engine serves the pair; this shard then only pulls for it.
    pub(super) owned: bool,
    /// The same pair from the other side, if the peer is also a task of this node.
    pub(super) mirror: Option<u32>,
    /// The session that it used last; it may be gone.
    pub(super) session: Option<Handle>,
    /// The session on whose link the local task has requested from the peer, if this shard serves the pair: the peer's tensors come ahead
    /// on it.
    pub(super) requested_there: Option<Handle>,
    /// The session on whose link the peer has requested from the local task: tensors go ahead on it.
    pub(super) requested_here: Option<Handle>,
}

/// The tasks and pairs of a node; see the module.
pub(super) struct Pairs {
    shard: u16,
    shards: u16,
    /// The tasks served here, each with the index of its address among this side's.
    tasks: Vec<(TaskName, u16)>,
    map: Arc<EndpointMap>,
    peer_tasks: Vec<PeerTask>,
    peer_numbers: HashMap<TaskName, u32>,
    pairs: Vec<Pair>,
    numbers: HashMap<(u16, u32), u32>,
    /// The pairs of each local task, by the task's index.
    of_tasks: Vec<Vec<u32>>,
}

impl Index<u32> for Pairs {
    type Output = Pair;

    #[inline]
    fn index(&self, pair: u32) -> &Pair {
        &self.pairs[pair as usize]
    }
}

impl Pairs {
    /// No pairs yet; `tasks` on shard `shard` of `shards`.
    ///
    /// # Errors
    /// InvalidArgument if there are more tasks than a handshake can name.
    pub(super) fn new(
        tasks: Vec<(TaskName, u16)>,
        map: Arc<EndpointMap>,
        (shard, shards): (u16, u16),
    ) -> Result<Pairs, Error> {
        check_tasks(&tasks)?;
        Ok(Pairs {
            shard,
            shards,
            tasks,
            map,
            peer_tasks: Vec::new(),
            peer_numbers: HashMap::new(),
            pairs: Vec::new(),
            numbers: HashMap::new(),
            of_tasks: Vec::new(),
        })
    }

    /// The tasks served here, by index.
    pub(super) fn tasks(&self) -> impl ExactSizeIterator<Item = &TaskName> {
        self.tasks.iter().map(|(task, _)| task)
    }

    pub(super) fn map(&self) -> &Arc<EndpointMap> {
        &self.map
    }

    /// The index of a local task in this side's task list.
    ///
    /// # Errors
    /// NotFound if it is not served here.
    pub(super) fn local_task(&self, name: &str) -> Result<u16, Error> {
        self.place_of(name).ok_or_else(|| Error::NotFound {
            task: name.into(),
            reason: format!("it is not among the {} tasks of this engine", self.tasks.len()).into(),
        })
    }

    fn place_of(&self, name: &str) -> Option<u16> {
        self.tasks().position(|task| task.as_str() == name).map(|place| place as u16)
    }

    /// The name of the task with this index.
    pub(super) fn task(&self, local: u16) -> &TaskName {
        &self.tasks[usize::from(local)].0
    }

    /// The index of the transport address by which a pair's local task is reached.
    pub(super) fn via(&self, pair: u32) -> u16 {
        self.tasks[usize::from(self[pair].local)].1
    }

    /// The name of a peer's task.
    pub(super) fn peer_name(&self, peer: u32) -> &TaskName {
        &self.peer_tasks[peer as usize].name
    }

    /// The address of a peer's task.
    pub(super) fn peer_address(&self, peer: u32) -> &TransportAddress {
        &self.peer_tasks[peer as usize].address
    }

    /// The pairs of a local task.
    pub(super) fn of_task(&self, local: u16) -> &[u32] {
        self.of_tasks.get(usize::from(local)).map_or(&[], Vec::as_slice)
    }

    /// The pairs of a peer's task.
    pub(super) fn of_peer(&self, peer: u32) -> &[u32] {
        &self.peer_tasks[peer as usize].pairs
    }

    /// The pair, if it has a number.
    pub(super) fn known(&self, local: u16, peer: u32) -> Option<&Pair> {
        self.numbers.get(&(local, peer)).map(|&pair| &self[pair])
    }

    /// The number of the pair of a local task and a peer.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map, InvalidArgument if another shard serves the pair.
    pub(super) fn pair(&mut self, local: u16, peer: &str) -> Result<u32, Error> {
        let pair = self.pulling_pair(local, peer)?;
        if self[pair].owned {
            return Ok(pair);
        }
        let owner = shard_of(lane(self.task(local).as_str(), peer), usize::from(self.shards));
        let here = self.shard;
        Err(Error::invalid(format!("the pair with {peer} is served by shard {owner}, this is shard {here}")))
    }

    /// Like [`pair`](Self::pair), for pulls, which any shard can make.
    ///
    /// # Errors
    /// NotFound if the peer is not in the endpoint map.
    pub(super) fn pulling_pair(&mut self, local: u16, peer: &str) -> Result<u32, Error> {
        let number = self.number_of(peer).ok_or_else(|| Error::NotFound {
            task: peer.into(),
            reason: "the endpoint map has no line for it; add one and reload".into(),
        })?;
        Ok(self.pair_of(local, number))
    }

    /// The number of a local task in the role of a peer.
    pub(super) fn number_of_local(&mut self, local: u16) -> Option<u32> {
        let name = self.task(local).clone();
        self.number_of(name.as_str())
    }

    /// The number of a task, if the map has it.
    pub(super) fn number_of(&mut self, name: &str) -> Option<u32> {
        if let Some(&number) = self.peer_numbers.get(name) {
            return Some(number);
        }
        let address = self.map.resolve(name)?.clone();
        let name = name.parse::<TaskName>().ok()?;
        let number = self.peer_tasks.len() as u32;
        debug_assert!(number < STRANGER, "a task would have the number of those whom the map does not name");
        self.peer_tasks.push(PeerTask { name: name.clone(), address, pairs: Vec::new() });
        self.peer_numbers.insert(name, number);
        Some(number)
    }

    /// The numbers of a peer's tasks. Names that the endpoint map lacks are strangers: a peer cannot make this side remember more than its
    /// map.
    pub(super) fn roster(&mut self, names: &[String]) -> Roster {
        Roster { numbers: names.iter().map(|name| self.number_of(name).unwrap_or(STRANGER)).collect() }
    }

    /// The number of the pair of a local task and a peer task.
    pub(super) fn pair_of(&mut self, local: u16, peer: u32) -> u32 {
        match self.numbers.get(&(local, peer)) {
            Some(&pair) => pair,
            None => self.add(local, peer),
        }
    }

    fn add(&mut self, local: u16, peer: u32) -> u32 {
        debug_assert_ne!(peer, STRANGER, "a stranger has no name to find its lane by");
        let names = (self.task(local), self.peer_name(peer));
        let lane = lane(names.0.as_str(), names.1.as_str());
        let (shard, shards) = (usize::from(self.shard), usize::from(self.shards));
        let (owned, lane) = (shard_of(lane, shards) == shard, lane_by(lane, shard, shards));
        let pair = self.pairs.len() as u32;
        let local_name = names.0.as_str().into();
        let (mirror, session, requested_there, requested_here) = (None, None, None, None);
        self.pairs.push(Pair {
            local,
            peer,
            lane,
            local_name,
            owned,
            mirror,
            session,
            requested_there,
            requested_here,
        });
        self.numbers.insert((local, peer), pair);
        self.peer_tasks[peer as usize].pairs.push(pair);
        if self.of_tasks.len() <= usize::from(local) {
            self.of_tasks.resize(usize::from(local) + 1, Vec::new());
        }
        self.of_tasks[usize::from(local)].push(pair);
        self.find_mirror(pair);
        pair
    }

    /// Checks whether the peer of a pair is also a task of this node.
    fn find_mirror(&mut self, pair: u32) {
        let Pair { local, peer, .. } = self[pair];
        let producer = self.place_of(self.peer_name(peer).as_str());
        let (Some(producer), Some(consumer)) = (producer, self.number_of_local(local)) else { return };
        // If the pair is not yet known from the other side, creating it there finds this one.
        let mirror = self.pair_of(producer, consumer);
        self.pairs[pair as usize].mirror = Some(mirror);
        self.pairs[mirror as usize].mirror = Some(pair);
        if self[pair].owned {
            let (task, peer) = (self.task(local).as_str(), self.peer_name(peer).as_str());
            tracing::info!(task, peer, link = "memory", reason = "this engine serves both tasks", "path");
        }
    }

    /// Checks again which pairs are of two tasks of this node, since tasks were added.
    pub(super) fn find_mirrors(&mut self) {
        (0..self.pairs.len() as u32).for_each(|pair| self.find_mirror(pair));
    }

    /// Takes more tasks and a new map. Returns the old map, and the pairs whose peers have moved. Pairs look up their sessions again.
    ///
    /// # Errors
    /// InvalidArgument if there are more tasks than a handshake can name; nothing has changed.
    pub(super) fn set_map(
        &mut self,
        map: Arc<EndpointMap>,
        more: Vec<(TaskName, u16)>,
    ) -> Result<(Arc<EndpointMap>, Vec<u32>), Error> {
        let tasks = [self.tasks.as_slice(), &more].concat();
        check_tasks(&tasks)?;
        self.tasks = tasks;
        let mut moved = Vec::new();
        for task in &mut self.peer_tasks {
            if let Some(address) = map.resolve(task.name.as_str()).filter(|address| **address != task.address) {
                task.address = address.clone();
                moved.extend(&task.pairs);
            }
        }
        self.pairs.iter_mut().for_each(|pair| pair.session = None);
        for &pair in &moved {
            let pair = &mut self.pairs[pair as usize];
            (pair.requested_there, pair.requested_here) = (None, None);
        }
        Ok((std::mem::replace(&mut self.map, map), moved))
    }

    /// The pair uses this session from now on.
    pub(super) fn set_session(&mut self, pair: u32, session: Handle) {
        self.pairs[pair as usize].session = Some(session);
    }

    /// The local task of a pair has made a request on this session's link.
    #[inline]
    pub(super) fn note_requested(&mut self, pair: u32, session: Handle) {
        self.pairs[pair as usize].requested_there = Some(session);
    }

    /// The peer of a pair has made a request on this session's link.
    #[inline]
    pub(super) fn note_requested_here(&mut self, pair: u32, session: Handle) {
        self.pairs[pair as usize].requested_here = Some(session);
    }

    /// The link of a session is gone: nothing goes ahead on the next one before something is requested there.
    pub(super) fn forget_requested(&mut self, session: Handle) {
        for pair in &mut self.pairs {
            pair.requested_there.take_if(|asked| *asked == session);
            pair.requested_here.take_if(|asked| *asked == session);
        }
    }

    /// The pairs that `pick` chooses stop using this session, and find another.
    pub(super) fn leave(&mut self, session: Handle, pick: impl Fn(&Pair) -> bool) {
        for pair in &mut self.pairs {
            if pair.session == Some(session) && pick(pair) {
                pair.session = None;
            }
        }
    }

    /// Panics unless numbers and names map to each other, as do both sides of a pair within this node. `at` gives the address of a session
    /// that exists.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants<'a>(&self, at: impl Fn(Handle) -> Option<&'a TransportAddress>) {
        assert_eq!(self.numbers.len(), self.pairs.len(), "a pair without its number would be numbered twice");
        assert_eq!(self.peer_numbers.len(), self.peer_tasks.len(), "a task without its number would be numbered twice");
        let listed: usize = self.of_tasks.iter().map(Vec::len).sum();
        assert_eq!(listed, self.pairs.len(), "a pair missing from its task's list would outlive its steps");
        let listed: usize = self.peer_tasks.iter().map(|task| task.pairs.len()).sum();
        assert_eq!(listed, self.pairs.len(), "a pair missing from its peer's list would not hear that a step ended");
        for (number, pair) in self.pairs.iter().enumerate() {
            let number = number as u32;
            let named = self.numbers.get(&(pair.local, pair.peer));
            assert_eq!(named, Some(&number), "requests of pair {number} would go to another");
            assert!(self.of_task(pair.local).contains(&number), "pair {number} is in another task's list");
            assert!(self.of_peer(pair.peer).contains(&number), "pair {number} is in another peer's list");
            assert_eq!(&*pair.local_name, self.task(pair.local).as_str(), "pushes would come under a wrong name");
            if let Some(mirror) = pair.mirror {
                assert_eq!(self[mirror].mirror, Some(number), "a send would not find the recv of its own node");
            }
            if let Some(address) = pair.session.and_then(&at) {
                assert_eq!(
                    address,
                    self.peer_address(pair.peer),
                    "pair {number} would ask a host that does not serve it"
                );
            }
        }
        for (name, &number) in &self.peer_numbers {
            assert_eq!(self.peer_name(number), name, "{name} would be taken for another task");
        }
    }
}

fn check_tasks(tasks: &[(TaskName, u16)]) -> Result<(), Error> {
    if tasks.len() > TASKS_PER_HELLO {
        let found = tasks.len();
        return Err(Error::invalid(format!("{found} tasks on one engine, at most {TASKS_PER_HELLO} are possible")));
    }
    let name_bytes: usize = tasks.iter().map(|(task, _)| task.as_str().len() + 2).sum();
    if name_bytes > HELLO_BYTES_MAX / 2 {
        let limit = HELLO_BYTES_MAX / 2;
        return Err(Error::invalid(format!("the tasks' names take {name_bytes} bytes, at most {limit} are possible")));
    }
    Ok(())
}
