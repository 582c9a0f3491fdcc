//! Opens a device for a shard: chooses it, and creates its queues.

use std::collections::VecDeque;

use super::IbDevice;
use super::choose::{self, DeviceSummary};
use super::memory;
use super::owned::{Channel, CompletionQueue, DeviceList, Domain, SharedReceiveQueue, never_block};
use super::slots::Slots;
use super::sys;
use super::windows::Windows;
use super::work::{ReceiveList, SendList};
use crate::verbs::VerbsSettings;
use crate::verbs::device::{Attributes, VerbsError};
use hashbrown::HashMap;

/// Reads that a queue pair issues and answers at the same time, even if the device offers more: far fewer fill a path, and
/// some devices reserve memory for each.
const READS_MAX: i32 = 16;

/// Completions that one call of the library takes out of the queue.
const POLL_BATCH: usize = 32;

/// The RDMA devices of this host, for `sealane check`. Each is opened briefly.
///
/// # Errors
/// libibverbs is not installed, or the kernel has no RDMA.
pub fn devices() -> Result<Vec<DeviceSummary>, VerbsError> {
    Ok(DeviceList::read()?.summaries())
}

impl IbDevice {
    /// Opens the device that the settings name or imply, with a completion queue of `completion_depth` entries, a shared
    /// receive queue of [`VerbsSettings::queue_depth`] buffers and, for each queue pair, a send queue of `send_depth` work
    /// requests; all three are reduced to what the device supports, as [`Attributes`] reports. Call this on the shard's own
    /// thread: completion interrupts go to the processor that it runs on, as far as the device can choose.
    ///
    /// # Errors
    /// The step that failed, and what to do about it.
    pub fn open(settings: &VerbsSettings, completion_depth: u32, send_depth: u32) -> Result<IbDevice, VerbsError> {
        choose::check(settings)?;
        let list = DeviceList::read()?;
        let summaries = list.summaries();
        let choice = choose::choose(&summaries, settings)?;
        let context = list.open(choice.device)?;
        drop(list);
        let limits = context.attributes()?;

        let cut = |wanted: u32, most: i32| wanted.clamp(1, u32::try_from(most).unwrap_or(1).max(1));
        let completion_depth = cut(completion_depth, limits.max_cqe);
        let receive_depth = cut(settings.queue_depth, limits.max_srq_wr);
        // One more per queue pair is for the device itself.
        let send_depth = cut(send_depth, limits.max_qp_wr.saturating_sub(1));
        let reads = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom).clamp(0, READS_MAX);
        let windows = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;

        never_block(context.event_descriptor())?;
        // SAFETY: everything here goes into the `IbDevice` in the order of its fields, or is dropped in the reverse order
        // of these lines.
        let domain = unsafe { Domain::allocate(&context)? };
        // SAFETY: as before.
        let channel = unsafe { Channel::create(&context)? };
        never_block(channel.descriptor())?;
        let vector = completion_vector(context.completion_vectors());
        // SAFETY: as before.
        let completions =
            unsafe { CompletionQueue::create(&context, &channel, completion_depth.cast_signed(), vector)? };
        // SAFETY: as before.
        let receives = unsafe { SharedReceiveQueue::create(&domain, receive_depth)? };

        let attributes = Attributes {
            device: summaries[choice.device].name.clone(),
            port: choice.port,
            gid_index: choice.gid.index,
            gid: choice.gid.gid,
            lid: if choice.ethernet { 0 } else { choice.lid },
            mtu: choice.mtu,
            reads: u8::try_from(reads).unwrap_or(0),
            has_windows: limits.device_cap_flags & windows != 0,
            work_bytes_max: choice.message_bytes_max,
            send_depth,
            receive_depth,
            // The queue may be larger than requested; code that relies on that would fail on other devices.
            completion_depth: completion_depth.min(completions.depth()),
            chosen: choice.sentence,
            direct: memory::registers_direct(&domain),
        };
        Ok(IbDevice {
            windows: Windows::new(),
            connections: HashMap::new(),
            receives,
            completions,
            channel,
            registrar: None,
            regions: Slots::new(),
            domain,
            context,
            attributes,
            why: choice.why,
            settings: settings.clone(),
            next_connection: 0,
            send_list: SendList::new(),
            receive_list: ReceiveList::new(),
            // SAFETY: the structure is numbers alone, for which zeros are valid.
            polled: vec![unsafe { std::mem::zeroed() }; POLL_BATCH].into_boxed_slice(),
            held: VecDeque::new(),
            failed: false,
        })
    }
}

/// The interrupt for this shard's completions: shards on different processors use different ones.
fn completion_vector(count: i32) -> i32 {
    let processor = nix::sched::sched_getcpu().ok().and_then(|processor| i32::try_from(processor).ok());
    processor.map_or(0, |processor| processor.checked_rem(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_rdma_says_what_is_missing() {
        let settings = VerbsSettings::default();
        let missing = |errno| DeviceList::missing(&std::io::Error::from_raw_os_error(errno)).reason;
        assert!(missing(libc::EOPNOTSUPP).contains("install it (Debian: libibverbs1"));
        assert!(missing(libc::ENOSYS).contains("load ib_uverbs"));
        let none = choose::choose(&[], &settings).expect_err("no device can be chosen");
        assert!(none.reason.contains("no RDMA device"), "{none}");

        // The result depends on the machine that runs this test; each is checked.
        match (devices(), IbDevice::open(&settings, 64, 16)) {
            (Err(missing), opened) => assert_eq!(opened.err(), Some(missing)),
            (Ok(devices), Err(error)) if devices.is_empty() => assert_eq!(error, none),
            (Ok(_), Err(error)) => assert!(error != none && !error.reason.is_empty(), "{error}"),
            (Ok(devices), Ok(opened)) => {
                assert!(devices.iter().any(|device| device.name == opened.attributes.device), "{devices:?}");
            }
        }
    }

    #[test]
    fn settings_are_checked_before_any_device_is_touched() {
        let settings = VerbsSettings { timeout: 99, ..VerbsSettings::default() };
        let error = IbDevice::open(&settings, 64, 16).err().expect("a timeout of 99");
        assert!(error.reason.contains("at most 31"), "{error}");
    }

    #[test]
    fn there_is_always_a_completion_vector() {
        for count in [-1, 0, 1, 7] {
            let vector = completion_vector(count);
            assert!(vector == 0 || (0..count).contains(&vector), "{vector} of {count}");
        }
    }
}
