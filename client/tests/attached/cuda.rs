//! Tensors in the memory of a CUDA device, with the tests' own driver (`tests/fake_cuda/driver.c`): its streams are threads, and the
//! host cannot touch its memory. One test at a time, since the process has only one driver.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, c_char, c_int, c_long, c_void},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use libloading::Library;
use sealane::{
    Code, Error, Task, Tensor,
    cuda::{self, Copying, DeviceBytes, DeviceTensor, Direction},
};

use crate::{
    daemon::{Daemon, Settings},
    fixture::{TASK, attached, block_on, bytes, meta, tensor, until_there_is_room},
};

struct Fake(Library);

macro_rules! fake {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Fake {
            $(fn $name(&self, $($argument: $type),*) $(-> $result)? {
                let name = concat!("fake_", stringify!($name));
                // SAFETY: so `driver.c` declares it, and the callers below give what it asks for.
                unsafe { self.0.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>(name.as_bytes()).unwrap()($($argument),*) }
            })*
        }
    };
}

fake! {
    allocate(device: c_int, bytes: *const u8, len: usize) -> u64;
    read(address: u64, to: *mut u8, len: usize) -> c_int;
    stream(device: c_int) -> *mut c_void;
    compute(stream: *mut c_void, address: u64, bytes: *const u8, len: usize);
    gate(stream: *mut c_void) -> *mut c_void;
    open(gate: *mut c_void);
    hold(holds: c_int);
    fail(function: *const c_char, status: c_int, after: c_int);
    lose(is_lost: c_int);
    counts(counts: *mut c_long);
}

/// Copies from and to pinned memory, copies from and to other memory, bytes, and pinned pieces.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    pinned: i64,
    unpinned: i64,
    bytes: i64,
    pieces: i64,
}

impl Fake {
    fn counted(&self) -> Counts {
        let mut counts = [0; 4];
        self.counts(counts.as_mut_ptr());
        let [pinned, unpinned, bytes, pieces] = counts;
        Counts { pinned, unpinned, bytes, pieces }
    }

    fn fails(&self, function: &str, status: i32, after: i32) {
        let function = CString::new(function).unwrap();
        self.fail(function.as_ptr(), status, after);
    }

    /// Memory of device 0 with these bytes.
    fn with(&self, bytes: &[u8]) -> u64 {
        let address = self.allocate(0, bytes.as_ptr(), bytes.len());
        assert_ne!(address, 0);
        address
    }

    /// The bytes at a device address.
    fn at(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.read(address, bytes.as_mut_ptr(), len), 1);
        bytes
    }
}

/// The driver for one test, reset to its initial state.
fn fake() -> (&'static Fake, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    static FAKE: OnceLock<Fake> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fake = FAKE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let (source, library) = (format!("{}/../tests/fake_cuda/driver.c", env!("CARGO_MANIFEST_DIR")), "libcuda.so.1");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-fPIC", "-shared", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", library, &source]);
        assert!(compiler.current_dir(&directory).status().unwrap().success());
        // SAFETY: it has no initializers. From now on it is found by its name.
        Fake(unsafe { Library::new(directory.path().join(library)) }.unwrap())
    });
    (fake, turn)
}

/// All of that memory, with no stream to wait for.
fn memory(address: u64, len: usize) -> DeviceBytes {
    // SAFETY: the fake device keeps what it gave, and a test touches it only when copies have ended.
    unsafe { DeviceBytes::new(0, address, len, None, Arc::new(())) }
}

fn on_device(address: u64, len: usize) -> DeviceTensor {
    DeviceTensor::new(meta(len), memory(address, len)).unwrap()
}

/// Copies the tensors to the host.
fn to_host(task: &Task, tensors: Vec<DeviceTensor>) -> Result<Vec<Vec<u8>>, Error> {
    let call = |_: &Task, host: Vec<Tensor>| std::future::ready(Ok(host));
    let host = block_on(task.copy_from_device(tensors, call))?;
    Ok(host.iter().map(|tensor| tensor.bytes().to_vec()).collect())
}

const LEN: usize = 100_000;

#[test]
fn a_tensor_goes_from_a_device_to_a_device_by_pinned_memory() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let before = fake.counted();
    let (source, target) = (fake.with(&bytes(LEN, 1)), fake.with(&bytes(LEN, 2)));

    let receiving = task.recv(TASK, 1, "key");
    let sending =
        task.copy_from_device(vec![on_device(source, LEN)], |task, mut host| task.send(TASK, 1, "key", host.remove(0)));
    let came = receiving.wait().unwrap();
    block_on(sending).unwrap();
    assert_eq!(came.bytes(), bytes(LEN, 1));

    let destination = task.alloc(LEN).unwrap();
    let receiving = task.recv_into(TASK, 2, "key", destination);
    task.send(TASK, 2, "key", came).wait().unwrap();
    block_on(task.copy_to_device(vec![(receiving.wait().unwrap(), memory(target, LEN))])).unwrap();
    assert_eq!(fake.at(target, LEN), bytes(LEN, 1));

    let Counts { pinned, unpinned, bytes, pieces } = fake.counted();
    let counted = (pinned - before.pinned, unpinned - before.unpinned, bytes - before.bytes, pieces - before.pieces);
    assert_eq!(counted, (2, 0, 2 * LEN as i64, 1));
    task.pin(0).unwrap();
}

#[test]
fn a_call_is_made_when_its_tensors_are_there_and_its_caller_does_not_wait() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let source = fake.with(&bytes(LEN, 1));
    fake.hold(1);
    let mut receiving = task.recv(TASK, 1, "key");
    let send = |task: &Task, mut host: Vec<Tensor>| task.send(TASK, 1, "key", host.remove(0));
    // The future is dropped, and the tensor is sent all the same.
    drop(task.copy_from_device(vec![on_device(source, LEN)], send));
    assert!(receiving.try_outcome().is_none());
    fake.hold(0);
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(LEN, 1));
}

#[test]
fn copies_wait_for_the_callers_stream() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let (address, stream) = (fake.with(&bytes(LEN, 1)), fake.stream(0));
    let after = |address| {
        // SAFETY: as `memory`; the stream is never destroyed.
        unsafe { DeviceBytes::new(0, address, LEN, Some(stream as u64), Arc::new(())) }
    };
    let gate = fake.gate(stream);
    fake.compute(stream, address, bytes(LEN, 2).as_ptr(), LEN);
    let call = |_: &Task, mut host: Vec<Tensor>| std::future::ready(Ok(host.remove(0)));
    let copying = task.copy_from_device(vec![DeviceTensor::new(meta(LEN), after(address)).unwrap()], call);
    fake.open(gate);
    assert_eq!(block_on(copying).unwrap().bytes(), bytes(LEN, 2));

    let gate = fake.gate(stream);
    fake.compute(stream, address, bytes(LEN, 3).as_ptr(), LEN);
    let copying = task.copy_to_device(vec![(tensor(LEN, 4), after(address))]);
    fake.open(gate);
    block_on(copying).unwrap();
    assert_eq!(fake.at(address, LEN), bytes(LEN, 4));
}

#[test]
fn views_of_one_buffer_are_copied_as_one() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let (flat, other) = (fake.with(&bytes(6400, 1)), fake.with(&bytes(64, 2)));
    let mut tensors: Vec<_> = (0..100).map(|index| on_device(flat + index * 64, 64)).collect();
    tensors.push(on_device(other, 64));
    tensors.push(on_device(flat, 0));
    let before = fake.counted();
    let host = to_host(&task, tensors).unwrap();
    assert_eq!(fake.counted().pinned - before.pinned, 2);
    assert_eq!(host[..100].concat(), bytes(6400, 1));
    assert_eq!(host[100..], [bytes(64, 2), Vec::new()]);
}

#[test]
fn allocations_that_follow_each_other_are_not_taken_for_one() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let len = 200 * 512;
    let [first, second] = [1, 2].map(|seed| fake.with(&bytes(len, seed)));
    assert_eq!(first + len as u64, second);
    let host = to_host(&task, vec![on_device(first, len), on_device(second, len)]).unwrap();
    assert_eq!(host, [bytes(len, 1), bytes(len, 2)]);
}

#[test]
fn memory_that_the_driver_does_not_pin_is_copied_all_the_same() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    fake.fails("cuMemHostRegister", 2, 0);
    let error = task.pin(0).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    let before = fake.counted();
    assert_eq!(to_host(&task, vec![on_device(fake.with(&bytes(LEN, 1)), LEN)]).unwrap(), [bytes(LEN, 1)]);
    let after = fake.counted();
    assert_eq!((after.pinned, after.unpinned - before.unpinned), (before.pinned, 1));
    // It is retried when that is requested.
    task.pin(0).unwrap();
}

#[test]
fn a_copy_that_fails_ends_its_call_alone_and_its_memory_is_free_again() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let all = task.arena_range().unwrap().unwrap();
    let all = all.end as usize - all.start as usize;
    for (function, status, code) in
        [("cuMemcpyDtoHAsync", 700, Code::Unavailable), ("cuMemcpyDtoHAsync", 2, Code::ResourceExhausted)]
    {
        // The first of two copies is in progress when the second is refused.
        fake.fails(function, status, 1);
        let tensors = vec![on_device(fake.with(&bytes(LEN, 1)), LEN), on_device(fake.with(&bytes(LEN, 2)), LEN)];
        let error = to_host(&task, tensors).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        until_there_is_room(&task, all);
    }
    let source = fake.with(&bytes(LEN, 3));
    assert_eq!(to_host(&task, vec![on_device(source, LEN)]).unwrap(), [bytes(LEN, 3)]);
    fake.fails("cuMemcpyHtoDAsync", 1, 0);
    let error = block_on(task.copy_to_device(vec![(tensor(LEN, 1), memory(source, LEN))])).unwrap_err();
    assert!(error.to_string().contains("cuMemcpyHtoDAsync"), "{error}");
    // An address that is not device memory.
    let error = to_host(&task, vec![on_device(source, 2 * LEN)]).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

#[test]
fn a_lost_device_ends_what_is_under_way_and_memory_that_it_may_write_to_is_not_used_again() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let arena = task.arena_range().unwrap().unwrap();
    let all = arena.end as usize - arena.start as usize;
    let source = fake.with(&bytes(LEN, 1));
    fake.hold(1);
    let call = |_: &Task, _: Vec<Tensor>| std::future::ready(Ok::<_, Error>(()));
    let copying = task.copy_from_device(vec![on_device(source, LEN)], call);
    fake.lose(1);
    let error = block_on(copying).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
    assert_eq!(to_host(&task, vec![on_device(source, LEN)]).unwrap_err().code(), Code::Unavailable);
    // The daemon and the task still work.
    drop(task.send(TASK, 1, "key", tensor(LEN, 2)));
    assert_eq!(task.recv(TASK, 1, "key").wait().unwrap().bytes(), bytes(LEN, 2));
    assert!(task.alloc(all).is_err());
    until_there_is_room(&task, all / 2);
    fake.lose(0);
    fake.hold(0);
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let refused = |copying: Copying, words: &str| {
        let error = block_on(copying).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(words), "{error}");
    };
    let source = fake.with(&bytes(LEN, 1));
    refused(task.copy_to_device(vec![(tensor(LEN - 1, 1), memory(source, LEN))]), "99999 bytes");
    refused(task.copy_to_device(Vec::new()), "no tensors");
    let device = |number| {
        // SAFETY: it is not copied.
        unsafe { DeviceBytes::new(number, source, LEN, None, Arc::new(())) }
    };
    refused(task.copy_to_device(vec![(tensor(LEN, 1), device(2))]), "there is no CUDA device 2: the driver has 2");
    refused(task.copy_to_device(vec![(tensor(LEN, 1), device(1 << 40))]), "at most 64");
    let both = vec![(tensor(LEN, 1), device(0)), (tensor(LEN, 1), device(1))];
    refused(task.copy_to_device(both), "devices 0 and 1");
    assert!(DeviceTensor::new(meta(LEN + 1), memory(source, LEN)).is_err());
    // More than the arena holds.
    let large = on_device(fake.with(&vec![0; 8 << 20]), 8 << 20);
    assert_eq!(to_host(&task, vec![large]).unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(cuda::devices().unwrap(), ["Fake 0", "Fake 1"]);
    assert!(cuda::stream(2, Direction::ToHost).is_err());
}

#[test]
fn memory_of_this_crates_own_is_freed_with_its_last_handle() {
    let (fake, _turn) = fake();
    let (_directory, _daemon, task) = attached();
    let memory = DeviceBytes::allocate(1, LEN).unwrap();
    memory.write(&bytes(LEN, 1)).unwrap();
    let half = DeviceTensor::new(meta(LEN / 2), memory.part(LEN / 2..LEN)).unwrap();
    drop(memory);
    assert_eq!(to_host(&task, vec![half.clone()]).unwrap(), [&bytes(LEN, 1)[LEN / 2..]]);
    let mut came = vec![0; LEN / 2];
    half.bytes().read(&mut came).unwrap();
    assert_eq!(came, bytes(LEN, 1)[LEN / 2..]);
    let address = half.bytes().address();
    drop(half);
    // The last copy may keep the memory a moment longer.
    while cuda::device_of(address).is_ok() {
        std::thread::yield_now();
    }
    fake.fails("cuMemAlloc", 2, 0);
    assert_eq!(DeviceBytes::allocate(0, 1).unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn an_arena_is_unpinned_when_its_task_is_closed_and_that_of_the_next_daemon_is_pinned() {
    let (fake, _turn) = fake();
    let before = fake.counted().pieces;
    let (directory, daemon, task) = attached();
    task.pin(0).unwrap();
    assert_eq!(fake.counted().pieces - before, 1);
    let source = fake.with(&bytes(LEN, 1));
    assert_eq!(to_host(&task, vec![on_device(source, LEN)]).unwrap(), [bytes(LEN, 1)]);
    daemon.kill();
    let daemon = Daemon::start(&directory, Settings::default());
    let counts = fake.counted();
    // The first call may still find that the last daemon has gone.
    while to_host(&task, vec![on_device(source, LEN)]).is_err() {}
    assert_eq!(fake.counted().unpinned, counts.unpinned);
    assert_eq!(fake.counted().pieces - before, 1);
    drop((task, daemon));
    while fake.counted().pieces > before {
        std::thread::yield_now();
    }
}
