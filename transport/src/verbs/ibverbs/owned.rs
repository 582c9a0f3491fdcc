//! Owners of the library's objects: each frees its object when dropped, in the order in which [`IbDevice`](super::IbDevice)
//! holds them.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

use super::choose::{self, DeviceSummary, GidKind, GidSummary, PortState, PortSummary};
use super::sys;
use crate::verbs::device::VerbsError;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

/// Declares the owner of a pointer, with the function that frees it.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $free:path, $verb:literal) => {
        $(#[$doc])*
        pub(super) struct $name(NonNull<$raw>);

        impl $name {
            pub(super) fn as_ptr(&self) -> *mut $raw {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the pointer came from the matching constructor, is freed here alone, and by the constructor's
                // contract what it was made of is still there.
                let code = unsafe { $free(self.0.as_ptr()) };
                if code != 0 {
                    let error = failure(code);
                    tracing::warn!(%error, concat!($verb, " failed; what it held stays until the process ends"));
                }
            }
        }
    };
}

/// The error of a verb that returns an error number, or -1 with the number in `errno`.
pub(super) fn failure(code: i32) -> io::Error {
    if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(code.abs()) }
}

/// The error of a verb that returned no pointer.
fn made<T>(verb: &'static str, pointer: *mut T) -> Result<NonNull<T>, VerbsError> {
    NonNull::new(pointer).ok_or_else(|| VerbsError::system(verb, &io::Error::last_os_error()))
}

pub(super) struct DeviceList {
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl DeviceList {
    /// The devices that the system has now.
    ///
    /// # Errors
    /// The library is not installed, or the kernel has no RDMA.
    pub(super) fn read() -> Result<Self, VerbsError> {
        if !sys::is_installed() {
            return Err(Self::missing(&io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { sys::ibv_get_device_list(&mut count) };
        let list = NonNull::new(list).ok_or_else(|| Self::missing(&io::Error::last_os_error()))?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// What is missing on a host that cannot list its devices.
    pub(super) fn missing(error: &io::Error) -> VerbsError {
        let reason = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => "libibverbs.so.1 could not be loaded: install it (Debian: libibverbs1 and \
                                       ibverbs-providers; others: rdma-core)"
                .to_owned(),
            Some(libc::ENOSYS) => {
                format!("the kernel has no RDMA ({error}): load ib_uverbs and the driver of the adapter")
            }
            _ => error.to_string(),
        };
        VerbsError::new("ibv_get_device_list", reason)
    }

    /// Opens each in turn to describe it.
    pub(super) fn summaries(&self) -> Vec<DeviceSummary> {
        (0..self.count).map(|at| self.summary(at)).collect()
    }

    fn summary(&self, at: usize) -> DeviceSummary {
        // SAFETY: the device is in the list, which lives; the name lives as long.
        let name = unsafe {
            let name = sys::ibv_get_device_name(self.device(at));
            if name.is_null() { c"" } else { std::ffi::CStr::from_ptr(name) }
        };
        let name = name.to_string_lossy().into_owned();
        match self.open(at).and_then(|context| context.ports()) {
            Ok(ports) => DeviceSummary { networks: networks(&name), name, ports, problem: None },
            Err(error) => {
                DeviceSummary { name, ports: Vec::new(), problem: Some(error.to_string()), networks: Vec::new() }
            }
        }
    }

    fn device(&self, at: usize) -> *mut sys::ibv_device {
        assert!(at < self.count, "device {at} of {}", self.count);
        // SAFETY: the list has `count` entries.
        unsafe { *self.list.as_ptr().add(at) }
    }

    /// Opens the device at this place.
    ///
    /// # Errors
    /// The system's message; if permission is missing, the remedy.
    pub(super) fn open(&self, at: usize) -> Result<Context, VerbsError> {
        // SAFETY: the device is in the list, which lives until after the call; an open device holds its own reference.
        let context = unsafe { sys::ibv_open_device(self.device(at)) };
        let context = NonNull::new(context).ok_or_else(|| {
            let error = io::Error::last_os_error();
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => ": this user may not open /dev/infiniband/uverbs*",
                io::ErrorKind::NotFound => ": /dev/infiniband/uverbs* is missing: load ib_uverbs, or pass it in",
                _ => "",
            };
            VerbsError::new("ibv_open_device", format!("{error}{remedy}"))
        })?;
        Ok(Context(context))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed here alone.
        unsafe { sys::ibv_free_device_list(self.list.as_ptr()) }
    }
}

owner!(
    /// An open device.
    Context, sys::ibv_context, sys::ibv_close_device, "ibv_close_device"
);

impl Context {
    /// The device's capabilities.
    ///
    /// # Errors
    /// The system's message.
    pub(super) fn attributes(&self) -> Result<sys::ibv_device_attr, VerbsError> {
        // SAFETY: the structure is numbers alone, for which zeros are valid.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure outlives the call.
        let code = unsafe { sys::ibv_query_device(self.as_ptr(), &mut attributes) };
        if code != 0 {
            return Err(VerbsError::system("ibv_query_device", &failure(code)));
        }
        Ok(attributes)
    }

    pub(super) fn ports(&self) -> Result<Vec<PortSummary>, VerbsError> {
        let count = self.attributes()?.phys_port_cnt;
        let mut ports: Vec<PortSummary> = (1..=count).map(|number| self.port(number)).collect::<Result<_, _>>()?;
        let room = ports.iter().map(|port| port.gids.capacity()).sum();
        for entry in self.gid_table(room)? {
            // SAFETY: every bit pattern is a GID.
            let gid = unsafe { entry.gid.raw };
            // The address handle has only 8 bits for the index.
            let Ok(index) = u8::try_from(entry.gid_index) else { continue };
            if let Some(port) = ports.iter_mut().find(|port| u32::from(port.number) == entry.port_num) {
                port.gids.push(GidSummary { index, gid, kind: GidKind::from_verbs(entry.gid_type) });
            }
        }
        Ok(ports)
    }

    /// The port without its GIDs, but with room for as many as its table holds.
    fn port(&self, number: u8) -> Result<PortSummary, VerbsError> {
        // SAFETY: the structure is numbers alone, for which zeros are valid.
        let mut port: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure outlives the call.
        let code = unsafe { sys::ibv_query_port(self.as_ptr(), number, &mut port) };
        if code != 0 {
            return Err(VerbsError::system("ibv_query_port", &failure(code)));
        }
        Ok(PortSummary {
            number,
            state: PortState::from_verbs(port.state),
            ethernet: port.link_layer == sys::link_layer::IBV_LINK_LAYER_ETHERNET,
            lid: port.lid,
            mtu: choose::mtu_from_verbs(port.active_mtu),
            message_bytes_max: port.max_msg_sz,
            gids: Vec::with_capacity(usize::try_from(port.gid_tbl_len).unwrap_or(0)),
        })
    }

    fn gid_table(&self, room: usize) -> Result<Vec<sys::ibv_gid_entry>, VerbsError> {
        if room == 0 {
            return Ok(Vec::new());
        }
        let mut entries = Vec::with_capacity(room);
        // SAFETY: the context is open, and there is room for as many entries as are asked for.
        let count = unsafe { sys::ibv_query_gid_table(self.as_ptr(), entries.as_mut_ptr(), room) };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO));
            let reason = match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => {
                    "libibverbs is older than release 33 of rdma-core: install a newer one".to_owned()
                }
                _ => error.to_string(),
            };
            return Err(VerbsError::new("ibv_query_gid_table", reason));
        };
        // SAFETY: the call has filled this many entries, at most what was asked for.
        unsafe { entries.set_len(count.min(room)) };
        Ok(entries)
    }

    pub(super) fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor lives as long.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).async_fd) }
    }

    /// Over how many interrupts completions are spread.
    pub(super) fn completion_vectors(&self) -> i32 {
        // SAFETY: the context is open.
        unsafe { (*self.as_ptr()).num_comp_vectors }
    }
}

/// Addresses of the network interfaces of a device's adapter: those that the kernel lists with it. On Ethernet a GID shows
/// the address; on InfiniBand only this does.
fn networks(device: &str) -> Vec<IpAddr> {
    let folder = format!("/sys/class/infiniband/{device}/device/net");
    let interfaces: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    let is_its = |name: &str| interfaces.iter().any(|interface| interface.file_name() == name);
    let all = getifaddrs().into_iter().flatten().filter(|address| is_its(&address.interface_name));
    let address = |storage: SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    all.filter_map(|interface| interface.address.and_then(address)).collect()
}

/// Makes reads of the descriptor non-blocking.
pub(super) fn never_block(descriptor: BorrowedFd<'_>) -> Result<(), VerbsError> {
    let step = "non-blocking descriptors";
    let flags = fcntl(descriptor, FcntlArg::F_GETFL).map_err(|error| VerbsError::system(step, &error.into()))?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(descriptor, FcntlArg::F_SETFL(flags)).map_err(|error| VerbsError::system(step, &error.into()))?;
    Ok(())
}

owner!(
    /// A protection domain.
    Domain, sys::ibv_pd, sys::ibv_dealloc_pd, "ibv_dealloc_pd"
);

impl Domain {
    /// # Safety
    /// It must be dropped before the context.
    pub(super) unsafe fn allocate(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        made("ibv_alloc_pd", unsafe { sys::ibv_alloc_pd(context.as_ptr()) }).map(Self)
    }
}

owner!(
    /// A completion channel.
    Channel, sys::ibv_comp_channel, sys::ibv_destroy_comp_channel, "ibv_destroy_comp_channel"
);

impl Channel {
    /// # Safety
    /// It must be dropped before the context.
    pub(super) unsafe fn create(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        made("ibv_create_comp_channel", unsafe { sys::ibv_create_comp_channel(context.as_ptr()) }).map(Self)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and its descriptor as long.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }

    /// Takes all events and acknowledges each at once, so that none is left unacknowledged when the queue is destroyed.
    pub(super) fn drain(&self) {
        debug_assert!(self.descriptor().as_raw_fd() >= 0, "an open descriptor");
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel lives, both pointers outlive the call, and the descriptor does not block.
            if unsafe { sys::ibv_get_cq_event(self.as_ptr(), &mut queue, &mut context) } != 0 {
                return;
            }
            // SAFETY: the queue is the one that the event came from, and it is not destroyed before this acknowledgement.
            unsafe { sys::ibv_ack_cq_events(queue, 1) };
        }
    }
}

owner!(CompletionQueue, sys::ibv_cq, sys::ibv_destroy_cq, "ibv_destroy_cq");

impl CompletionQueue {
    /// # Safety
    /// It must be dropped before the channel and the context.
    pub(super) unsafe fn create(
        context: &Context,
        channel: &Channel,
        depth: i32,
        vector: i32,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the context and the channel live.
        let queue = unsafe { sys::ibv_create_cq(context.as_ptr(), depth, ptr::null_mut(), channel.as_ptr(), vector) };
        made("ibv_create_cq", queue).map(Self)
    }

    /// Its number of entries, at least the number requested.
    pub(super) fn depth(&self) -> u32 {
        // SAFETY: the queue lives.
        u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0)
    }
}

owner!(SharedReceiveQueue, sys::ibv_srq, sys::ibv_destroy_srq, "ibv_destroy_srq");

impl SharedReceiveQueue {
    /// # Safety
    /// It must be dropped before the domain.
    pub(super) unsafe fn create(domain: &Domain, depth: u32) -> Result<Self, VerbsError> {
        let mut wanted = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain lives, and the structure outlives the call.
        made("ibv_create_srq", unsafe { sys::ibv_create_srq(domain.as_ptr(), &mut wanted) }).map(Self)
    }
}

owner!(MemoryRegion, sys::ibv_mr, sys::ibv_dereg_mr, "ibv_dereg_mr");

impl MemoryRegion {
    /// # Safety
    /// The bytes must stay mapped while it lives. It must be dropped before the domain.
    pub(super) unsafe fn register(domain: &Domain, address: u64, bytes: usize, access: u32) -> io::Result<Self> {
        let address = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the domain lives; the caller answers for the rest.
        unsafe { Self::register_in(domain.as_ptr(), address, bytes, access) }
    }

    /// As [`register`](Self::register), for a thread other than the domain's.
    ///
    /// # Safety
    /// As for [`register`](Self::register), and the domain must be alive.
    pub(super) unsafe fn register_in(
        domain: *mut sys::ibv_pd,
        address: *mut std::ffi::c_void,
        bytes: usize,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: as the caller promises. The library checks the range.
        let region = unsafe { sys::ibv_reg_mr(domain, address, bytes, access.cast_signed()) };
        NonNull::new(region).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// As [`register_in`](Self::register_in), for memory of another device: bytes of a dma-buf at an offset, and their address
    /// for work requests.
    ///
    /// # Safety
    /// The domain must be alive, and must be dropped after the region.
    pub(super) unsafe fn register_direct_in(
        domain: *mut sys::ibv_pd,
        (offset, bytes, address): (u64, usize, u64),
        descriptor: RawFd,
        access: u32,
    ) -> io::Result<Self> {
        // SAFETY: as the caller promises. Library and kernel check the descriptor and the range.
        let region =
            unsafe { sys::ibv_reg_dmabuf_mr(domain, offset, bytes, address, descriptor, access.cast_signed()) };
        NonNull::new(region).map(Self).ok_or_else(io::Error::last_os_error)
    }

    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives.
        unsafe { ((*self.as_ptr()).lkey, (*self.as_ptr()).rkey) }
    }
}

owner!(
    /// A memory window of type 2.
    MemoryWindow, sys::ibv_mw, sys::ibv_dealloc_mw, "ibv_dealloc_mw"
);

impl MemoryWindow {
    /// # Safety
    /// It must be dropped before the regions and queue pairs that it is bound to and through, and before the domain.
    pub(super) unsafe fn allocate(domain: &Domain) -> Result<Self, VerbsError> {
        // SAFETY: the domain lives.
        let window = unsafe { sys::ibv_alloc_mw(domain.as_ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2) };
        made("ibv_alloc_mw", window).map(Self)
    }

    pub(super) fn key(&self) -> u32 {
        // SAFETY: the window lives.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// Tells the library the window's current key.
    pub(super) fn set_key(&self, rkey: u32) {
        // SAFETY: the window lives, and the library reads the field within calls of this thread alone.
        unsafe { (*self.as_ptr()).rkey = rkey }
    }
}

owner!(
    /// A queue pair.
    Connection, sys::ibv_qp, sys::ibv_destroy_qp, "ibv_destroy_qp"
);

impl Connection {
    /// # Safety
    /// It must be dropped before everything that `wanted` names, and before the domain.
    pub(super) unsafe fn create(domain: &Domain, wanted: &mut sys::ibv_qp_init_attr) -> io::Result<Self> {
        // SAFETY: the domain lives, and so does what the structure names.
        let pair = unsafe { sys::ibv_create_qp(domain.as_ptr(), wanted) };
        NonNull::new(pair).map(Self).ok_or_else(io::Error::last_os_error)
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.as_ptr()).qp_num }
    }
}
