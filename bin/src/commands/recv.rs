//! `sealane recv`: asks one task for tensors and writes them to a file.

use std::path::{Path, PathBuf};

use sealane::{Code, Error, RecvOptions};

use super::transfer::{Carrier, Ends, Side, Wanted};
use crate::files::{self, Format, NamedTensor, directory_of, may_create_in};
use crate::{Context, Failure, counted};

/// The limits that a tensor exceeds if it does not fit where tensors of unknown length are received: an engine's slab, or a
/// client's area of the daemon.
const LANDING_LIMITS: [&str; 2] = ["runtime.slab_receive_bytes", "daemon.area_bytes"];

/// Initial memory to share with a daemon: none, since tensors are received into the daemon's memory.
const ARENA_BYTES: u64 = 0;

/// Receive tensors from a task into an .npy or .safetensors file
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane recv --from ps0:2222 --to worker0:2222 --key dense --out dense.npy")]
pub struct Args {
    #[command(flatten)]
    ends: Ends,

    /// The tensor's key; repeatable for a .safetensors file
    #[arg(long, required = true)]
    key: Vec<String>,

    /// The file to write; its extension determines the format
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs `sealane recv`.
///
/// # Errors
///
/// The arguments, the endpoint map or a setting is wrong; or a tensor did not come in time; or the file cannot be
/// written.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    check_out(&args.out, &args.key)?;
    let mut carrier = args.ends.start(Side::Receiver, ARENA_BYTES, context)?;
    let received = receive(&mut carrier, args);
    carrier.stop()?;
    let tensors = received?;
    files::write(&args.out, &tensors)?;
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
    let (count, from) = (counted(tensors.len(), "tensor"), &args.ends.from);
    context.print(&format!("received {count}, {bytes} bytes, from {from} into {}\n", args.out.display()))
}

/// Checks whether the tensors can be written before they are taken from their sender.
fn check_out(out: &Path, keys: &[String]) -> Result<(), Failure> {
    if Format::of(out)? == Format::Npy && keys.len() > 1 {
        let count = keys.len();
        return Err(Failure::input(format!(
            "{}: an .npy file holds one tensor and {count} keys are named; write a .safetensors file",
            out.display()
        )));
    }
    if let Some(twice) = (1..keys.len()).find(|&index| keys[..index].contains(&keys[index])) {
        return Err(Failure::input(format!("--key {} is named twice; name each key once", keys[twice])));
    }
    match out.parent() {
        Some(directory) if !directory.as_os_str().is_empty() && !directory.is_dir() => Err(Failure::input(format!(
            "{}: there is no directory {}; make it, or name a file elsewhere",
            out.display(),
            directory.display()
        ))),
        _ => may_create_in(directory_of(out)).map_err(|error| {
            let problem =
                format!("it could not be written ({error}); name a file in a directory that can be written to");
            Failure::file(out, problem)
        }),
    }
}

fn receive(carrier: &mut Carrier, args: &Args) -> Result<Vec<NamedTensor>, Failure> {
    let Ends { from, step, .. } = &args.ends;
    let (step, timeout) = (*step, args.ends.timeout());
    let options = || RecvOptions { timeout: Some(timeout), destination: None, ..RecvOptions::default() };
    let receivings: Vec<_> = args.key.iter().map(|key| carrier.task().recv_with(from, step, key, options())).collect();
    // All requests end before any tensor is requested again, which may cancel those in flight.
    let outcomes: Vec<_> = receivings.into_iter().map(|receiving| receiving.wait().map_err(Error::from)).collect();
    let mut tensors = Vec::with_capacity(outcomes.len());
    for (key, outcome) in args.key.iter().zip(outcomes) {
        let outcome = match outcome {
            Err(Error::ResourceExhausted { limit, .. }) if LANDING_LIMITS.contains(&&*limit) => {
                carrier.recv_large(&Wanted { from, step, key, timeout })
            }
            outcome => outcome,
        };
        tensors.push((key.clone(), outcome.map_err(|error| failure(&error, &args.ends))?));
    }
    Ok(tensors)
}

fn failure(error: &Error, ends: &Ends) -> Failure {
    let Ends { from, to, step, .. } = ends;
    let sender = format!("`sealane send FILE --from {from} --to {to} --step {step}`");
    match error.code() {
        Code::DeadlineExceeded => Failure::work(format!(
            "{error}; run {sender} there with a file that has that key, or wait longer with --timeout-s"
        )),
        Code::Unavailable => Failure::work(format!("{error}; start {sender} there, or wait longer with --timeout-s")),
        _ => Failure::work(error),
    }
}
