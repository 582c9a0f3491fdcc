//! One side of a measurement of iceoryx2, for `cargo xtask peers`: publish and subscribe in shared memory, where both sides spin.
//! A tensor is copied into memory that is lent, and looked at where it lies.
//!
//! ```text
//! iceoryx2-peer echo NAME BYTES              answers every sample until it is told that it was the last
//! iceoryx2-peer ping NAME BYTES SECONDS      prints the median round trip in microseconds
//! iceoryx2-peer take NAME BYTES              takes samples until it is told that it was the last
//! iceoryx2-peer push NAME BYTES SECONDS      prints samples a second
//! ```

use std::error::Error;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Samples that wait for the subscriber at most: small ones, and large ones. A publisher that finds the queue full would yield
/// its CPU; so the subscriber answers whenever it has taken half of them.
const QUEUED: [usize; 2] = [1024, 2];
const LARGE_BYTES: usize = 8192;
/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is sent after the last sample, and as an answer to many.
const LAST: [u8; 1] = [1];
const TAKEN: [u8; 2] = [1; 2];

struct Side {
    source: Publisher<ipc::Service, [u8], ()>,
    target: Subscriber<ipc::Service, [u8], ()>,
    tensor: Vec<u8>,
    queued: usize,
}

impl Side {
    fn open(node: &Node<ipc::Service>, name: &str, size: usize, is_first: bool) -> Outcome<Self> {
        let queued = QUEUED[usize::from(size >= LARGE_BYTES)];
        let service = |way: &str| {
            node.service_builder(&format!("{name}/{way}").as_str().try_into()?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_buffer_size(queued)
                .enable_safe_overflow(false)
                .open_or_create()
                .map_err(Box::<dyn Error>::from)
        };
        let (there, back) = (service("there")?, service("back")?);
        let (out, into) = if is_first { (&there, &back) } else { (&back, &there) };
        let source = out
            .publisher_builder()
            .initial_max_slice_len(size.max(TAKEN.len()))
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        let target = into.subscriber_builder().create()?;
        let begun = Instant::now();
        while out.dynamic_config().number_of_subscribers() == 0 || into.dynamic_config().number_of_publishers() == 0 {
            if begun.elapsed() > PATIENCE {
                return Err("nobody is at the other side".into());
            }
            spin_loop();
        }
        Ok(Self { source, target, tensor: vec![1; size], queued })
    }

    fn send(&self, bytes: &[u8]) -> Outcome<()> {
        self.source.loan_slice_uninit(bytes.len())?.write_from_slice(bytes).send()?;
        Ok(())
    }

    /// Takes a sample of this length; says whether others follow.
    fn take(&self, expected: usize) -> Outcome<bool> {
        let mut begun = None;
        loop {
            for _ in 0..1 << 16 {
                if let Some(sample) = self.target.receive()? {
                    let bytes = sample.payload();
                    if bytes.len() == LAST.len() {
                        return Ok(false);
                    }
                    let is_whole = bytes.len() == expected && bytes[0] == 1 && bytes[bytes.len() - 1] == 1;
                    return if is_whole { Ok(true) } else { Err("other bytes came".into()) };
                }
                spin_loop();
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err("nothing comes".into());
            }
        }
    }

    /// Round trips for so long, after a tenth of that time that is not counted.
    fn ping(&self, length: Duration) -> Outcome<()> {
        let (mut times, begun) = (Vec::with_capacity(1 << 20), Instant::now());
        loop {
            let asked = Instant::now();
            self.send(&self.tensor)?;
            self.take(self.tensor.len())?;
            let took = asked.elapsed();
            if asked - begun > length.mul_f64(1.1) {
                break;
            }
            if asked - begun > length / 10 {
                times.push(took);
            }
        }
        times.sort_unstable();
        println!("rtt_us {}", times.get(times.len() / 2).map_or(0.0, |took| took.as_secs_f64() * 1e6));
        self.send(&LAST)
    }

    /// One way for so long, after a tenth of that time that is not counted.
    fn push(&self, length: Duration) -> Outcome<()> {
        let (begun, mut counts_from, mut count, mut waiting) = (Instant::now(), None, 0, 0);
        let at_once = self.queued / 2;
        loop {
            if waiting == self.queued {
                self.take(TAKEN.len())?;
                waiting -= at_once;
            }
            for _ in 0..at_once {
                self.send(&self.tensor)?;
            }
            count += at_once;
            waiting += at_once;
            let now = Instant::now();
            match counts_from {
                None if now - begun > length / 10 => (counts_from, count) = (Some(now), 0),
                Some(from) if now - from > length => {
                    println!("per_second {}", count as f64 / (now - from).as_secs_f64());
                    return self.send(&LAST);
                }
                _ => {}
            }
        }
    }
}

fn main() -> Outcome<()> {
    set_log_level(LogLevel::Error);
    let given: Vec<String> = std::env::args().skip(1).collect();
    let (Some([role, name, size]), Ok(length)) =
        (given.first_chunk(), given.get(3).map_or("0", String::as_str).parse().map(Duration::from_secs_f64))
    else {
        return Err("usage: iceoryx2-peer echo|ping|take|push NAME BYTES [SECONDS]".into());
    };
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let side = Side::open(&node, name, size.parse()?, matches!(role.as_str(), "ping" | "push"))?;
    match role.as_str() {
        "ping" => side.ping(length),
        "push" => side.push(length),
        "echo" => {
            while side.take(side.tensor.len())? {
                side.send(&side.tensor)?;
            }
            Ok(())
        }
        "take" => {
            for count in 1.. {
                if !side.take(side.tensor.len())? {
                    break;
                }
                if count % (side.queued / 2) == 0 {
                    side.send(&TAKEN)?;
                }
            }
            Ok(())
        }
        _ => Err("the role is echo, ping, take or push".into()),
    }
}
