//! The baseline `raw` of the verbs link: perftest, the measuring programs of RDMA's own developers, run in each round between two
//! processes on the device and port that Sealane uses. Latency is `ib_send_lat` with its single exchanges, of which it reports
//! half; bandwidth is `ib_write_bw` with as many outstanding RDMA WRITEs as the window, but at least two.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sealane_transport::verbs::{self, VerbsSettings};

use super::channel::NAME;
use crate::error::BenchError;
use crate::figures::{Metric, Sample, record_round_trip, round_trip_histogram};
use crate::limits::STALL_LIMIT;
use crate::machine::{Pinned, RdmaDevice};
use crate::peer::PeerJob;
use crate::plan::{Bench, Plan};
use crate::system::{Client, System};
use crate::systems::sockets;

/// Fewest outstanding RDMA WRITEs: with one, the device would be idle while its completion is handled.
const WRITES_MIN: usize = 2;
/// Exchanges of a trial that finds how many fit into a round, and the fewest and most in a round.
const TRIAL: u64 = 100;
const EXCHANGES: (u64, u64) = (20, 5_000_000);
/// Time between two attempts to reach the server, which does not tell when it listens.
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Message of a client that started before its server.
const TOO_EARLY: &str = "Couldn't connect";
/// perftest's megabyte.
const MEBIBYTE: f64 = 1_048_576.0;

/// Two processes of perftest each round.
struct OverVerbs {
    device: RdmaDevice,
    server_cpu: Option<usize>,
    /// How long an exchange takes, if known.
    exchange: Option<Duration>,
}

/// Perftest on the system's device.
pub(in crate::systems) fn start(job: &PeerJob) -> Result<System, BenchError> {
    let device = verbs::open(&VerbsSettings::default()).map_err(|error| failed("open the device", &error))?;
    let (plan, device) = (&job.plan, RdmaDevice::from(device.attributes()));
    let waiting = if plan.polling { "polling" } else { "sleeping" };
    let variant = match plan.bench {
        Bench::Latency => format!("{waiting}, ib_send_lat"),
        _ => format!("{waiting}, ib_write_bw, window {}", plan.window.max(WRITES_MIN)),
    };
    let client = OverVerbs { device: device.clone(), server_cpu: job.cpu, exchange: None };
    Ok(System::new(NAME, variant, plan, client).with_device(Some(device)))
}

impl OverVerbs {
    /// The command, with the arguments for both sides.
    fn command(&self, plan: &Plan, port: u16, exchanges: u64) -> Command {
        let (program, more) = match plan.bench {
            Bench::Latency => ("ib_send_lat", vec!["-U".to_owned()]),
            _ => ("ib_write_bw", vec!["-t".to_owned(), plan.window.max(WRITES_MIN).to_string()]),
        };
        let RdmaDevice { name, port: device_port, gid_index, .. } = &self.device;
        let mut command = Command::new(program);
        command.args(["-F", "-d", name, "-i", &device_port.to_string(), "-x", &gid_index.to_string()]);
        command.args(["-p", &port.to_string(), "-s", &plan.size_bytes.to_string(), "-n", &exchanges.to_string()]);
        command.args(more).args((!plan.polling).then_some("-e"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs both sides for that many exchanges; returns what the client printed.
    fn run(&self, plan: &Plan, exchanges: u64) -> Result<String, BenchError> {
        let port = sockets::listen(Ipv4Addr::LOCALHOST.into(), None).and_then(|listener| sockets::port(&listener))?;
        let mut server = {
            // A new process inherits the CPUs of its parent's thread.
            let _pinned = self.server_cpu.map(Pinned::to).transpose()?;
            let mut server = self.command(plan, port, exchanges);
            Server(
                server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| not_run(&server, &error))?,
            )
        };
        let begun = Instant::now();
        loop {
            let mut client = self.command(plan, port, exchanges);
            let ended = client.arg("127.0.0.1").output().map_err(|error| not_run(&client, &error))?;
            let [printed, said] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            if ended.status.success() {
                return Ok(printed);
            }
            if !(printed + &said).contains(TOO_EARLY) || begun.elapsed() > STALL_LIMIT {
                return Err(failed("run perftest", &format!("{}: {}", ended.status, said.trim())));
            }
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(failed("run perftest's server", &format!("it ended with {status}")));
            }
            std::thread::sleep(RETRY_EVERY);
        }
    }
}

impl Client for OverVerbs {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let each = match self.exchange {
            Some(each) => each,
            None => measured(plan, &self.run(plan, TRIAL)?)?.1,
        };
        let exchanges = (length.as_secs_f64() / each.as_secs_f64().max(1e-9)) as u64;
        let (sample, each) = measured(plan, &self.run(plan, exchanges.clamp(EXCHANGES.0, EXCHANGES.1))?)?;
        self.exchange = Some(each);
        Ok(sample)
    }
}

/// A child that is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The result of perftest, and how long an exchange took.
fn measured(plan: &Plan, printed: &str) -> Result<(Sample, Duration), BenchError> {
    let missing = || failed("read what perftest printed", &"it has no figure");
    if plan.bench == Bench::Latency {
        let trips = round_trips(printed);
        let each = Duration::from_nanos(trips.value_at_quantile(0.5));
        return if trips.is_empty() { Err(missing()) } else { Ok((Sample::round_trips(trips), each)) };
    }
    let mebibytes = average_bandwidth(printed).filter(|average| *average > 0.0).ok_or_else(missing)?;
    let bytes_per_s = mebibytes * MEBIBYTE;
    let each = Duration::from_secs_f64(plan.size_bytes as f64 / bytes_per_s);
    Ok((Sample::figure(Metric::GigabytesPerSecond, bytes_per_s / 1e9), each))
}

/// Twice each of the times, which are one way and in microseconds, after their numbers below `#, usec`.
fn round_trips(printed: &str) -> Histogram<u64> {
    let mut trips = round_trip_histogram();
    let rows = printed.lines().skip_while(|line| !line.starts_with("#, ")).skip(1);
    let times = rows.map_while(|line| line.split_once(',')?.1.trim().parse::<f64>().ok());
    times.for_each(|us| record_round_trip(&mut trips, Duration::from_secs_f64(2.0 * us.max(0.0) / 1e6)));
    trips
}

/// The average of an `ib_*_bw`, whose heading begins with `#bytes`: columns are told apart by their units, as names may have
/// several words.
fn average_bandwidth(printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let before = lines.next()?.split_once("BW average[MB/sec]")?.0;
    // `#bytes` and `#iterations` come first and have no unit.
    lines.next()?.split_whitespace().nth(2 + before.matches(']').count())?.parse().ok()
}

fn failed(operation: &'static str, reason: &impl ToString) -> BenchError {
    BenchError::Failed { system: "verbs", operation, reason: reason.to_string() }
}

fn not_run(command: &Command, error: &io::Error) -> BenchError {
    let program = command.get_program().to_string_lossy();
    failed("run perftest", &format!("{program}: {error}; install perftest, or leave out --baseline raw"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = " Data ex. method : Ethernet
---------------------------------------------------------------------------------------
#, usec
1, 9.68
2, 153.20
3, 10.00
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      3          9.68           153.20       10.00     \t       10.64       \t4.42   \t\t153.20   \t\t153.20 
";

    const BANDWIDTH: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    200              63.35              61.50  \t\t   0.000061
";

    #[test]
    fn every_exchange_is_a_round_trip_of_twice_its_time() {
        let plan = Plan::new(Bench::Latency);
        let (sample, each) = measured(&plan, LATENCY).unwrap();
        let trips = sample.round_trips.expect("there are three");
        assert_eq!(trips.len(), 3);
        assert!(each.as_nanos().abs_diff(20_000) < 100, "{each:?}");
        assert!(trips.max().abs_diff(306_400) < 1_000, "{}", trips.max());
    }

    #[test]
    fn bandwidth_is_found_by_its_column() {
        let plan = Plan { size_bytes: 1 << 20, ..Plan::new(Bench::Bandwidth) };
        let (sample, each) = measured(&plan, BANDWIDTH).unwrap();
        assert_eq!(sample.figures, [(Metric::GigabytesPerSecond, 61.5 * MEBIBYTE / 1e9)]);
        assert!((each.as_secs_f64() - 1.0 / 61.5).abs() < 1e-6, "{each:?}");
    }

    #[test]
    fn what_is_not_there_is_not_invented() {
        for (bench, printed) in
            [(Bench::Latency, BANDWIDTH), (Bench::Bandwidth, LATENCY), (Bench::Latency, "#, usec\n")]
        {
            let error = measured(&Plan::new(bench), printed).expect_err("there is no figure").to_string();
            assert_eq!(error, "verbs failed to read what perftest printed: it has no figure");
        }
    }
}
