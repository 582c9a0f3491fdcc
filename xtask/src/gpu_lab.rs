//! What needs a GPU: whether tensors that go to and from its memory are the same, and how fast. Needs nothing but this program and `sealane`
//! beside it, for machines that cannot build.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use clap::Args;
use sealane::cuda::{self, DeviceBytes, DeviceTensor};
use sealane::{Attach, DType, Error, Task, TensorMeta};
use serde_json::{Value, json};

use crate::Outcome;

/// The daemon's two tasks.
const PS: &str = "ps0:2222";
const WORKER: &str = "worker0:2222";
/// Bytes of a large tensor.
const LARGE: usize = 64 << 20;
/// Sizes and counts of small ones, as one call.
const SMALL: [(usize, usize); 3] = [(64, 1000), (4 << 10, 1000), (64 << 10, 200)];
/// Room for the large one on each side, and the small ones.
const ARENA_BYTES: u64 = 256 << 20;
/// How long a daemon may take to listen.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// See [`crate::Chore::GpuLab`].
#[derive(Args)]
pub(crate) struct GpuLab {
    /// Rounds of each measurement; the median counts
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// The program `sealane`; else the one beside this
    #[arg(long)]
    sealane: Option<PathBuf>,
}

/// A daemon, until it is dropped.
struct Daemon {
    process: Child,
    directory: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    fn start(program: &PathBuf) -> Result<Daemon, String> {
        let told = |error: std::io::Error| format!("cannot start {}: {error}", program.display());
        let directory = tempfile::tempdir().map_err(told)?;
        // The port is given back before the daemon takes it, which another program could do as well.
        let address =
            std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).map_err(told)?;
        std::fs::write(directory.path().join(".endpoint_map"), format!("{PS}={address}\n{WORKER}={address}\n"))
            .map_err(told)?;
        let log = File::create(directory.path().join("log")).map_err(told)?;
        let area = (2 * ARENA_BYTES).to_string();
        let process = Command::new(program)
            .args(["daemon", "--socket", "socket", "--metrics", "off", "--set", &format!("daemon.area_bytes={area}")])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(told)?;
        Ok(Daemon { process, directory })
    }

    fn attach(&self, task: &str) -> Result<Task, String> {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            let attach = Attach::new(task).socket(self.directory.path().join("socket")).arena_bytes(ARENA_BYTES);
            match attach.attach() {
                Ok(task) => return Ok(task),
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
                Err(error) => {
                    let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                    return Err(format!("{error}; the daemon says:\n{log}"));
                }
            }
        }
    }
}

impl GpuLab {
    /// Prints one JSON object; false if bytes were not the same.
    pub(crate) fn run(&self) -> Outcome {
        let devices = cuda::devices().map_err(|error| error.to_string())?;
        if devices.is_empty() {
            return Err("the CUDA driver has no devices".to_owned());
        }
        let beside = || env::current_exe().ok()?.parent().map(|directory| directory.join("sealane"));
        let program = self.sealane.clone().or_else(beside).ok_or("name the program by --sealane")?;
        let program = program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?;
        let daemon = Daemon::start(&program)?;
        let (ps, worker) = (daemon.attach(PS)?, daemon.attach(WORKER)?);
        let pinned = ps.pin(0).and_then(|()| worker.pin(0)).err().map(|error| error.to_string());
        let lab = Lab { ps, worker, rounds: self.rounds.max(1) };
        let mut rows = vec![lab.large().map_err(|error| error.to_string())?];
        for (len, count) in SMALL {
            rows.push(lab.small(len, count).map_err(|error| error.to_string())?);
        }
        let is_well = rows.iter().all(|row| row["bytes_equal"] == true);
        let report = json!({
            "schema": "sealane-gpu-lab/1", "devices": devices, "not_pinned_because": pinned, "rounds": self.rounds, "rows": rows,
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

/// The median of what `once` takes.
fn median(rounds: usize, mut once: impl FnMut() -> Result<Duration, Error>) -> Result<f64, Error> {
    // The first round finds memory and links that nobody has used.
    once()?;
    let mut times = (0..rounds).map(|_| once()).collect::<Result<Vec<_>, Error>>()?;
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64())
}

fn timed<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<Duration, Error> {
    let begun = Instant::now();
    run().map(|_| begun.elapsed())
}

impl Lab {
    /// Copies through the arena, and whole exchanges, beside what the driver needs for the same from pinned memory.
    fn large(&self) -> Result<Value, Error> {
        let (source, target) = (DeviceBytes::allocate(0, LARGE)?, DeviceBytes::allocate(0, LARGE)?);
        let bytes: Vec<u8> = (0..LARGE).map(|at| (at ^ (at >> 8)) as u8).collect();
        source.write(&bytes)?;
        let (mut memory, meta) = (self.ps.alloc(LARGE)?, TensorMeta::new(DType::U8, &[LARGE as u64])?);
        let raw_to_host = median(self.rounds, || timed(|| source.read(&mut memory)))?;
        let raw_to_device = median(self.rounds, || timed(|| target.write(&memory)))?;
        drop(memory);
        let tensor = || DeviceTensor::new(meta.clone(), source.clone());
        let staged_to_host = median(self.rounds, || {
            let tensor = tensor()?;
            timed(|| {
                self.ps.waiter().block_on(self.ps.copy_from_device(vec![tensor], ready), Duration::MAX).transpose()
            })
        })?;
        let mut received = Some(sealane::Tensor::new(meta.clone(), self.worker.alloc(LARGE)?)?.into_shared());
        let staged_to_device = median(self.rounds, || {
            let tensor = received.as_ref().expect("it is kept").share();
            timed(|| {
                self.worker
                    .waiter()
                    .block_on(self.worker.copy_to_device(vec![(tensor, target.clone())]), Duration::MAX)
                    .transpose()
            })
        })?;
        received = None;
        drop(received);
        let mut step = 0;
        let exchange = median(self.rounds, || {
            step += 1;
            let tensor = tensor()?;
            timed(|| self.exchange(step, vec![tensor], vec![target.clone()]))
        })?;
        let mut came = vec![0; LARGE];
        target.read(&mut came)?;
        let gb = LARGE as f64 / 1e9;
        Ok(json!({
            "what": "one tensor", "bytes": LARGE, "bytes_equal": came == bytes,
            "raw_to_host_gb_s": gb / raw_to_host, "staged_to_host_gb_s": gb / staged_to_host,
            "to_host_ratio": raw_to_host / staged_to_host,
            "raw_to_device_gb_s": gb / raw_to_device, "staged_to_device_gb_s": gb / staged_to_device,
            "to_device_ratio": raw_to_device / staged_to_device,
            "exchange_ms": exchange * 1e3,
        }))
    }

    /// Many small tensors of one flat buffer, each a tensor of its own on the way.
    fn small(&self, len: usize, count: usize) -> Result<Value, Error> {
        let (source, target) = (DeviceBytes::allocate(0, len * count)?, DeviceBytes::allocate(0, len * count)?);
        let bytes: Vec<u8> = (0..len * count).map(|at| (at ^ (at >> 8) ^ 7) as u8).collect();
        source.write(&bytes)?;
        let meta = TensorMeta::new(DType::U8, &[len as u64])?;
        let mut step = 1 << 32;
        let exchange = median(self.rounds, || {
            step += 1;
            let tensor = |index| DeviceTensor::new(meta.clone(), source.part(index * len..(index + 1) * len));
            let tensors = (0..count).map(tensor).collect::<Result<Vec<_>, Error>>()?;
            let places = (0..count).map(|index| target.part(index * len..(index + 1) * len)).collect();
            timed(|| self.exchange(step, tensors, places))
        })?;
        let mut came = vec![0; len * count];
        target.read(&mut came)?;
        Ok(json!({
            "what": "small tensors", "bytes": len, "count": count, "bytes_equal": came == bytes,
            "exchange_ms": exchange * 1e3, "each_us": exchange * 1e6 / count as f64,
        }))
    }

    /// Tensors from a device to another task and to a device there.
    fn exchange(&self, step: i64, tensors: Vec<DeviceTensor>, places: Vec<DeviceBytes>) -> Result<(), Error> {
        let keys: Vec<String> = (0..tensors.len()).map(|index| index.to_string()).collect();
        let receivings = self.worker.recv_all(PS, step, keys.iter().map(|key| (key, Default::default())));
        let sending = self.ps.copy_from_device(tensors, move |task, host| {
            // They go on by themselves.
            drop(task.send_all(WORKER, step, keys.iter().zip(host)));
            std::future::ready(Ok::<(), Error>(()))
        });
        let came = sealane::Receiving::wait_all(receivings).into_iter().collect::<Result<Vec<_>, _>>();
        let came = came.map_err(|unreceived| unreceived.error)?;
        let copying = self.worker.copy_to_device(came.into_iter().zip(places).collect());
        let waiter = self.worker.waiter();
        waiter.block_on(copying, Duration::MAX).transpose()?;
        waiter.block_on(sending, Duration::MAX).transpose().map(drop)
    }
}

fn ready(_: &Task, tensors: Vec<sealane::Tensor>) -> std::future::Ready<Result<Vec<sealane::Tensor>, Error>> {
    std::future::ready(Ok(tensors))
}
