//! Translates work requests and completions between the device interface and the library. The lists are reused: after the
//! first calls nothing is allocated.

use std::ptr;

use super::owned::{Connection, MemoryRegion, SharedReceiveQueue, failure};
use super::slots::Slots;
use super::sys;
use super::windows::Windows;
use crate::verbs::device::{Completion, Grant, Piece, Post, RECEIVED, Status, VerbsError, Work};

/// The list of work requests that one call posts.
pub(super) struct SendList {
    requests: Vec<sys::ibv_send_wr>,
    /// One for each request, at the same index.
    pieces: Vec<sys::ibv_sge>,
}

impl SendList {
    pub(super) fn new() -> Self {
        Self { requests: Vec::new(), pieces: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }

    /// Adds one request.
    ///
    /// # Errors
    /// It names something that does not exist, or is too long for an inline send; the list is unchanged.
    pub(super) fn push(
        &mut self,
        post: &Post,
        inline_bytes: u32,
        regions: &Slots<MemoryRegion>,
        windows: &Windows,
    ) -> Result<(), VerbsError> {
        use sys::ibv_wr_opcode as opcode;

        // SAFETY: the structure is numbers and pointers, for which zeros are valid.
        let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = post.id;
        if post.signaled {
            request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED;
        }
        let mut piece = Piece { address: 0, bytes: 0, lkey: 0 };
        match post.work {
            Work::Send(from) => {
                request.opcode = opcode::IBV_WR_SEND;
                piece = from;
            }
            Work::SendInline { address, bytes } => {
                if bytes > inline_bytes {
                    let reason = format!("an inline send of {bytes} bytes, where the device has {inline_bytes}");
                    return Err(VerbsError::new("ibv_post_send", reason));
                }
                request.opcode = opcode::IBV_WR_SEND;
                request.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE;
                piece = Piece { address, bytes, lkey: 0 };
            }
            Work::Write { from, to, word } => {
                request.opcode = opcode::IBV_WR_RDMA_WRITE;
                if let Some(word) = word {
                    request.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                    request.imm_data = word.to_be();
                }
                request.wr = sys::ibv_send_wr_remote::rdma(to.address, to.rkey);
                piece = from;
            }
            Work::Read { into, from } => {
                request.opcode = opcode::IBV_WR_RDMA_READ;
                request.wr = sys::ibv_send_wr_remote::rdma(from.address, from.rkey);
                piece = into;
            }
            Work::Bind { window, rkey, region, address, bytes, grant } => {
                let missing = |what| VerbsError::new("memory window bind", what);
                let region = regions.get(region).ok_or_else(|| missing("there is no such region"))?;
                let held = windows.get(window.id).ok_or_else(|| missing("the window ended with its queue pair"))?;
                // The key before this bind: Soft-RoCE reads it from there, and nobody else keeps it up to date. So one call may
                // post at most one bind of a window, which holds because each bind waits for the end of the one before.
                held.set_key(window.rkey);
                let access = match grant {
                    Grant::Read => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ,
                    Grant::Write => sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
                };
                request.opcode = opcode::IBV_WR_BIND_MW;
                request.bind_mw = sys::ibv_send_wr_bind {
                    mw: held.as_ptr(),
                    rkey,
                    bind_info: sys::ibv_mw_bind_info {
                        mr: region.as_ptr(),
                        addr: address,
                        length: bytes,
                        mw_access_flags: access,
                    },
                };
            }
            Work::Invalidate { rkey } => {
                request.opcode = opcode::IBV_WR_LOCAL_INV;
                request.imm_data = rkey;
            }
        }
        // No piece instead of an empty one: to some devices a length of 0 means 2 GiB.
        request.num_sge = i32::from(piece.bytes > 0);
        self.requests.push(request);
        self.pieces.push(entry(piece));
        Ok(())
    }

    /// Posts the list.
    ///
    /// # Errors
    /// How many were accepted, and why the next was not.
    ///
    /// # Safety
    /// As for [`Device::post`](crate::verbs::device::Device::post).
    pub(super) unsafe fn post(&mut self, connection: &Connection) -> Result<(), (usize, VerbsError)> {
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        let pieces = self.pieces.as_mut_ptr();
        let requests = self.requests.as_mut_ptr();
        for at in 0..count {
            // SAFETY: both lists have `count` entries, and do not move until after the call.
            unsafe {
                (*requests.add(at)).sg_list = pieces.add(at);
                (*requests.add(at)).next = if at + 1 < count { requests.add(at + 1) } else { ptr::null_mut() };
            }
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the list is linked within memory that outlives the call, and ends; the caller answers for the memory
        // that it names, and the queue pair lives.
        let code = unsafe { sys::ibv_post_send(connection.as_ptr(), requests, &mut refused) };
        if code == 0 {
            return Ok(());
        }
        // If it is unknown which one was refused, all count as accepted: the device may hold any of them.
        let taken = place(requests.cast_const(), refused, count).unwrap_or(count);
        Err((taken, VerbsError::system("ibv_post_send", &failure(code))))
    }
}

/// The list of receive buffers that one call posts.
pub(super) struct ReceiveList {
    requests: Vec<sys::ibv_recv_wr>,
    pieces: Vec<sys::ibv_sge>,
}

impl ReceiveList {
    pub(super) fn new() -> Self {
        Self { requests: Vec::new(), pieces: Vec::new() }
    }

    /// Posts buffers to the shared receive queue.
    ///
    /// # Errors
    /// The system's message.
    ///
    /// # Safety
    /// As for [`Device::post_receives`](crate::verbs::device::Device::post_receives).
    pub(super) unsafe fn post(
        &mut self,
        queue: &SharedReceiveQueue,
        buffers: &[(u64, Piece)],
    ) -> Result<(), VerbsError> {
        if buffers.is_empty() {
            return Ok(());
        }
        self.requests.clear();
        self.pieces.clear();
        self.pieces.extend(buffers.iter().map(|(_, piece)| entry(*piece)));
        self.requests.extend(buffers.iter().map(|(id, piece)| {
            debug_assert!(id & RECEIVED != 0, "ids of receive buffers have their bit set");
            let num_sge = i32::from(piece.bytes > 0);
            sys::ibv_recv_wr { wr_id: *id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge }
        }));
        let count = buffers.len();
        let pieces = self.pieces.as_mut_ptr();
        let requests = self.requests.as_mut_ptr();
        for at in 0..count {
            // SAFETY: both lists have `count` entries, and do not move until after the call.
            unsafe {
                (*requests.add(at)).sg_list = pieces.add(at);
                (*requests.add(at)).next = if at + 1 < count { requests.add(at + 1) } else { ptr::null_mut() };
            }
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the list is linked within memory that outlives the call, and ends; the caller answers for the memory
        // that it names, and the queue lives.
        let code = unsafe { sys::ibv_post_srq_recv(queue.as_ptr(), requests, &mut refused) };
        if code == 0 { Ok(()) } else { Err(VerbsError::system("ibv_post_srq_recv", &failure(code))) }
    }
}

fn entry(piece: Piece) -> sys::ibv_sge {
    sys::ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.lkey }
}

/// The index of `entry` in a list.
fn place<T>(list: *const T, entry: *const T, count: usize) -> Option<usize> {
    let at = entry.addr().checked_sub(list.addr())? / size_of::<T>();
    (at < count).then_some(at)
}

/// Translates an entry of the completion queue.
pub(super) fn completion(entry: &sys::ibv_wc) -> Completion {
    let mut completion =
        Completion { id: entry.wr_id, status: Status(entry.status), queue_pair: entry.qp_num, bytes: 0, word: None };
    // In a failed one nothing else is valid, and a completed send need not have a length.
    if completion.status.is_success() && entry.wr_id & RECEIVED != 0 {
        completion.bytes = entry.byte_len;
        // Immediate data that comes with a message instead of a write is ignored: it is not part of the device interface, and
        // the message is in the buffer.
        if entry.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            completion.word = Some(u32::from_be(entry.imm_data));
        }
    }
    completion
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::device::{Remote, Window};

    fn list(works: &[Work]) -> SendList {
        let mut list = SendList::new();
        for (id, work) in (0..).zip(works) {
            let post = Post { id, signaled: id % 2 == 0, work: *work };
            list.push(&post, 64, &Slots::new(), &Windows::new()).unwrap();
        }
        list
    }

    #[test]
    fn requests_are_translated() {
        let piece = Piece { address: 4096, bytes: 10, lkey: 7 };
        let to = Remote { address: 8192, rkey: 9 };
        let list = list(&[
            Work::Send(piece),
            Work::SendInline { address: 1, bytes: 64 },
            Work::Write { from: piece, to, word: Some(0x0102_0304) },
            Work::Write { from: Piece { bytes: 0, ..piece }, to, word: None },
            Work::Read { into: piece, from: to },
            Work::Invalidate { rkey: 77 },
        ]);
        let said: Vec<_> =
            list.requests.iter().map(|request| (request.opcode, request.send_flags, request.num_sge)).collect();
        assert_eq!(said, [(2, 2, 1), (2, 8, 1), (1, 2, 1), (0, 0, 0), (4, 2, 1), (7, 0, 0)]);
        assert_eq!(list.requests[2].imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(list.requests[2].wr.remote_addr, 8192);
        assert_eq!(list.requests[5].imm_data, 77);
        assert_eq!((list.pieces[0].addr, list.pieces[0].length, list.pieces[0].lkey), (4096, 10, 7));
    }

    #[test]
    fn what_cannot_be_posted_is_refused_before() {
        let mut list = SendList::new();
        let mut refused = |work| {
            let post = Post { id: 0, signaled: true, work };
            list.push(&post, 64, &Slots::new(), &Windows::new()).unwrap_err().to_string()
        };
        assert!(refused(Work::SendInline { address: 1, bytes: 65 }).contains("65 bytes, where the device has 64"));
        let window = Window { id: 0, rkey: 256 };
        let bind = Work::Bind { window, rkey: 257, region: 0, address: 0, bytes: 1, grant: Grant::Read };
        assert!(refused(bind).contains("no such region"));
        assert!(list.requests.is_empty() && list.pieces.is_empty());
    }

    #[test]
    fn the_refused_request_is_found_in_the_list() {
        let list = [1_u64, 2, 3];
        assert_eq!(place(list.as_ptr(), &list[2], 3), Some(2));
        assert_eq!(place(list.as_ptr(), ptr::null(), 3), None);
        assert_eq!(place(list.as_ptr(), &list[2], 2), None);
    }

    #[test]
    fn completions_are_translated() {
        // SAFETY: the structure is numbers alone, for which zeros are valid.
        let mut entry: sys::ibv_wc = unsafe { std::mem::zeroed() };
        entry.wr_id = RECEIVED | 5;
        entry.qp_num = 17;
        entry.byte_len = 99;
        entry.opcode = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        entry.imm_data = 0x0102_0304_u32.to_be();
        let received = completion(&entry);
        assert_eq!((received.bytes, received.word, received.queue_pair), (99, Some(0x0102_0304), 17));
        entry.opcode = 1 << 7;
        assert_eq!(completion(&entry).word, None);
        entry.status = 5;
        let flushed = completion(&entry);
        assert_eq!((flushed.id, flushed.status, flushed.bytes), (RECEIVED | 5, Status::FLUSHED, 0));
        entry.status = 0;
        entry.wr_id = 5;
        assert_eq!(completion(&entry).bytes, 0);
    }
}
