//! The functions of the system's library, which is loaded on the first call and never unloaded.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::types::*;

/// Declares functions that the library exports: a table of them, filled on loading, and functions that call them.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        struct Library {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            /// Since releases 33 and 34 of rdma-core.
            query_gid_table: Option<QueryGidTable>,
            reg_dmabuf_mr: Option<RegisterDmaBuf>,
        }

        impl Library {
            fn load() -> Option<Self> {
                // SAFETY: what libibverbs does while it is loaded, it does in every program that is linked with it.
                let library = Box::leak(Box::new(unsafe { libloading::Library::new("libibverbs.so.1") }.ok()?));
                Some(Self {
                    // SAFETY: a function of this name has these arguments (verbs.h), and the library stays loaded.
                    $($name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes()).ok()? },)*
                    // SAFETY: as before.
                    query_gid_table: unsafe { library.get(b"_ibv_query_gid_table\0") }.ok().map(|found| *found),
                    // SAFETY: as before.
                    reg_dmabuf_mr: unsafe { library.get(b"ibv_reg_dmabuf_mr\0") }.ok().map(|found| *found),
                })
            }
        }

        $(
            pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: as the caller promises.
                unsafe { (loaded().$name)($($argument),*) }
            }
        )*
    };
}

type QueryGidTable = unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
type RegisterDmaBuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

pub fn is_installed() -> bool {
    library().is_some()
}

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref()
}

fn loaded() -> &'static Library {
    library().expect("devices are listed first, and only where the library is installed")
}

exported! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(domain: *mut ibv_pd, address: *mut c_void, bytes: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(context: *mut ibv_context, entries: c_int, own: *mut c_void, channel: *mut ibv_comp_channel,
        vector: c_int) -> *mut ibv_cq;
    fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, queue: *mut *mut ibv_cq, own: *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(queue: *mut ibv_cq, count: u32);
    fn ibv_create_srq(domain: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(domain: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int;
}

pub unsafe fn ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, entries_max: usize) -> isize {
    let Some(query) = loaded().query_gid_table else { return -(libc::EOPNOTSUPP as isize) };
    // SAFETY: as the caller promises.
    unsafe { query(context, entries, entries_max, 0, size_of::<ibv_gid_entry>()) }
}

pub unsafe fn ibv_reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    bytes: usize,
    address: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let Some(register) = loaded().reg_dmabuf_mr else {
        nix::errno::Errno::EOPNOTSUPP.set();
        return ptr::null_mut();
    };
    // SAFETY: as the caller promises.
    unsafe { register(domain, offset, bytes, address, descriptor, access) }
}

// Inline functions of the header.

pub unsafe fn ibv_poll_cq(queue: *mut ibv_cq, entries: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promises; an object's context lives as long as it.
    unsafe { ((*(*queue).context).ops.poll_cq)(queue, entries, into) }
}

pub unsafe fn ibv_req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as before.
    unsafe { ((*(*queue).context).ops.req_notify_cq)(queue, solicited_only) }
}

pub unsafe fn ibv_post_srq_recv(queue: *mut ibv_srq, list: *mut ibv_recv_wr, refused: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as before.
    unsafe { ((*(*queue).context).ops.post_srq_recv)(queue, list, refused) }
}

pub unsafe fn ibv_post_send(pair: *mut ibv_qp, list: *mut ibv_send_wr, refused: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: as before.
    unsafe { ((*(*pair).context).ops.post_send)(pair, list, refused) }
}

pub unsafe fn ibv_alloc_mw(domain: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: as before.
    let Some(allocate) = (unsafe { (*(*domain).context).ops.alloc_mw }) else {
        nix::errno::Errno::EOPNOTSUPP.set();
        return ptr::null_mut();
    };
    // SAFETY: as before.
    unsafe { allocate(domain, kind) }
}

pub unsafe fn ibv_dealloc_mw(window: *mut ibv_mw) -> c_int {
    // SAFETY: as before.
    match unsafe { (*(*window).context).ops.dealloc_mw } {
        // SAFETY: as before.
        Some(deallocate) => unsafe { deallocate(window) },
        None => libc::EOPNOTSUPP,
    }
}
