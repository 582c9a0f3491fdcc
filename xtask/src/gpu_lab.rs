//! Tests that need a GPU: whether tensors to and from its memory arrive unchanged, and how fast. Needs only this program and
//! `sealane` beside it, for machines that cannot build.

use std::ffi::OsString;
use std::future::ready;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use clap::Args;
use sealane::cuda::{self, DeviceBytes, DeviceTensor};
use sealane::{Attach, DType, Error, Task, Tensor, TensorMeta};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Outcome;
use crate::hosts::Slot;

/// The daemon's two tasks.
const PS: &str = "ps0:2222";
const WORKER: &str = "worker0:2222";
/// Bytes of a large tensor, and sizes and counts of small ones, which are moved by one call.
const LARGE: usize = 64 << 20;
const SMALL: [(usize, usize); 3] = [(64, 1000), (4 << 10, 1000), (64 << 10, 200)];
/// Room for the large tensor on each side, and the small ones.
const ARENA_BYTES: u64 = 256 << 20;
/// How long a daemon may take to listen.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct GpuLab {
    /// Rounds of each measurement; the median counts
    #[arg(long, default_value_t = 11)]
    rounds: usize,
}

/// A daemon that ends when dropped.
struct Daemon {
    _process: Slot,
    directory: TempDir,
}

impl Daemon {
    fn start(program: &Path) -> Result<Daemon, String> {
        let told = |error: std::io::Error| format!("cannot start {}: {error}", program.display());
        let directory = tempfile::tempdir().map_err(told)?;
        let [map, socket, log] = ["map", "socket", "log"].map(|name| directory.path().join(name));
        // The port is released before the daemon takes it, so another program could take it in between.
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).map_err(told)?;
        fs::write(&map, format!("{PS}={free}\n{WORKER}={free}\n")).map_err(told)?;
        let area = format!("daemon.area_bytes={}", 2 * ARENA_BYTES);
        let mut arguments = ["daemon", "--metrics", "off", "--set", &area].map(OsString::from).to_vec();
        arguments.extend(["--endpoint-map".into(), map.into(), "--socket".into(), socket.into()]);
        let mut process = Slot::default();
        process.start(&[], program, &arguments, &log)?;
        Ok(Daemon { _process: process, directory })
    }

    fn attach(&self, task: &str) -> Result<Task, String> {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            let attach = Attach::new(task).socket(self.directory.path().join("socket")).arena_bytes(ARENA_BYTES);
            match attach.attach() {
                Ok(task) => return Ok(task),
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
                Err(error) => {
                    let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                    return Err(format!("{error}; the daemon says:\n{log}"));
                }
            }
        }
    }
}

impl GpuLab {
    /// Prints one JSON object; false if bytes differed.
    pub(crate) fn run(&self) -> Outcome {
        let told = |error: Error| error.to_string();
        let devices = cuda::devices().map_err(told)?;
        if devices.is_empty() {
            return Err("the CUDA driver has no devices".to_owned());
        }
        let program = env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let daemon = Daemon::start(&program.with_file_name("sealane"))?;
        let (ps, worker) = (daemon.attach(PS)?, daemon.attach(WORKER)?);
        let pinned = ps.pin(0).and_then(|()| worker.pin(0)).err().map(|error| error.to_string());
        let lab = Lab { ps, worker, rounds: self.rounds.max(1) };
        let copies = lab.copies().map_err(told)?;
        let sizes = [(LARGE, 1)].into_iter().chain(SMALL);
        let rows = sizes.map(|(len, count)| lab.exchanges(len, count)).collect::<Result<Vec<_>, _>>().map_err(told)?;
        let is_well = rows.iter().all(|row| row["bytes_equal"] == true);
        let report = json!({
            "schema": "sealane-gpu-lab/1", "devices": devices, "not_pinned_because": pinned, "rounds": self.rounds,
            "copies": copies, "exchanges": rows,
        });
        println!("{report:#}");
        Ok(is_well)
    }
}

struct Lab {
    ps: Task,
    worker: Task,
    rounds: usize,
}

impl Lab {
    /// The median duration of `once`, in seconds.
    fn median<T>(&self, mut once: impl FnMut() -> Result<T, Error>) -> Result<f64, Error> {
        // The first round uses new memory and links, and does not count.
        once()?;
        let mut timed = || {
            let begun = Instant::now();
            once().map(|_| begun.elapsed())
        };
        let mut times = (0..self.rounds).map(|_| timed()).collect::<Result<Vec<_>, Error>>()?;
        times.sort();
        Ok(times[times.len() / 2].as_secs_f64())
    }

    /// Copies of a large tensor through the arena, next to the driver's own copies from pinned memory.
    fn copies(&self) -> Result<Value, Error> {
        let device = DeviceBytes::allocate(0, LARGE)?;
        let (mut memory, meta) = (self.ps.alloc(LARGE)?, TensorMeta::new(DType::U8, &[LARGE as u64])?);
        let raw_to_host = self.median(|| device.read(&mut memory))?;
        let raw_to_device = self.median(|| device.write(&memory))?;
        drop(memory);
        let staged_to_host = self.median(|| {
            let tensor = DeviceTensor::new(meta.clone(), device.clone())?;
            let copying = self.ps.copy_from_device(vec![tensor], |_, host| ready(Ok::<_, Error>(host)));
            self.ps.waiter().block_on(copying, Duration::MAX).transpose()
        })?;
        let tensor = Tensor::new(meta, self.worker.alloc(LARGE)?)?.into_shared();
        let staged_to_device = self.median(|| {
            let copying = self.worker.copy_to_device(vec![(tensor.share(), device.clone())]);
            self.worker.waiter().block_on(copying, Duration::MAX).transpose()
        })?;
        let gb = LARGE as f64 / 1e9;
        Ok(json!({
            "bytes": LARGE,
            "raw_to_host_gb_s": gb / raw_to_host, "staged_to_host_gb_s": gb / staged_to_host,
            "to_host_ratio": raw_to_host / staged_to_host,
            "raw_to_device_gb_s": gb / raw_to_device, "staged_to_device_gb_s": gb / staged_to_device,
            "to_device_ratio": raw_to_device / staged_to_device,
        }))
    }

    /// Parts of one flat buffer, each sent as a tensor to another task and its device.
    fn exchanges(&self, len: usize, count: usize) -> Result<Value, Error> {
        let (source, target) = (DeviceBytes::allocate(0, len * count)?, DeviceBytes::allocate(0, len * count)?);
        let bytes: Vec<u8> = (0..len * count).map(|at| (at ^ (at >> 8) ^ 7) as u8).collect();
        source.write(&bytes)?;
        let meta = TensorMeta::new(DType::U8, &[len as u64])?;
        let mut step = (len as i64) << 32;
        let exchange = self.median(|| {
            step += 1;
            let part = |index: usize| index * len..(index + 1) * len;
            let tensor = |index| DeviceTensor::new(meta.clone(), source.part(part(index)));
            let tensors = (0..count).map(tensor).collect::<Result<Vec<_>, Error>>()?;
            let places = (0..count).map(|index| target.part(part(index))).collect();
            self.exchange(step, tensors, places)
        })?;
        let mut came = vec![0; len * count];
        target.read(&mut came)?;
        Ok(json!({
            "bytes": len, "count": count, "bytes_equal": came == bytes,
            "exchange_ms": exchange * 1e3, "each_us": exchange * 1e6 / count as f64,
        }))
    }

    fn exchange(&self, step: i64, tensors: Vec<DeviceTensor>, places: Vec<DeviceBytes>) -> Result<(), Error> {
        let keys: Vec<String> = (0..tensors.len()).map(|index| index.to_string()).collect();
        let receivings = self.worker.recv_all(PS, step, keys.iter().map(|key| (key, Default::default())));
        let sending = self.ps.copy_from_device(tensors, move |task, host| {
            // The sends go on by themselves.
            drop(task.send_all(WORKER, step, keys.iter().zip(host)));
            ready(Ok::<(), Error>(()))
        });
        let came = sealane::Receiving::wait_all(receivings).into_iter().collect::<Result<Vec<_>, _>>();
        let came = came.map_err(|unreceived| unreceived.error)?;
        let copying = self.worker.copy_to_device(came.into_iter().zip(places).collect());
        let waiter = self.worker.waiter();
        waiter.block_on(copying, Duration::MAX).transpose()?;
        waiter.block_on(sending, Duration::MAX).transpose().map(drop)
    }
}
