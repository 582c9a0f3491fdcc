//! `sealane send`: offers the tensors of a file to one task, and ends when all have arrived there.

use std::path::PathBuf;

use sealane::{Code, Error, SendOptions, Sending, Task};

use super::transfer::{Ends, Side};
use crate::arena_size::arena_bytes;
use crate::files::{self, NamedTensor};
use crate::{Context, Failure, counted};

/// Send the tensors of an .npy or .safetensors file to a task
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane send dense.npy --from ps0:2222 --to worker0:2222")]
pub struct Args {
    /// The file; its extension determines the format
    file: PathBuf,

    #[command(flatten)]
    ends: Ends,

    /// The key of an .npy file's tensor [default: the file's name without extension]; of a .safetensors file, the
    /// only tensor to send
    #[arg(long)]
    key: Option<String>,
}

/// Runs `sealane send`.
///
/// # Errors
///
/// The file, the endpoint map or a setting is wrong; or not all tensors were requested in time.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let tensors = files::read(&args.file, args.key.as_deref())?;
    let lengths = || tensors.iter().map(|(_, tensor)| tensor.bytes().len() as u64);
    let (count, bytes) = (counted(tensors.len(), "tensor"), lengths().sum::<u64>());
    let carrier = args.ends.start(Side::Sender, arena_bytes(lengths()), context)?;
    let sent = offer(carrier.task(), &args.ends, tensors);
    carrier.stop()?;
    sent.map_err(|error| failure(&error, &args.ends))?;
    context.print(&format!("sent {count}, {bytes} bytes, to {}\n", args.ends.to))
}

/// Sends all tensors and waits until they are released.
fn offer(task: &Task, ends: &Ends, tensors: Vec<NamedTensor>) -> Result<(), Error> {
    let send = |(key, tensor): NamedTensor| {
        task.send_with(&ends.to, ends.step, &key, tensor, SendOptions { timeout: Some(ends.timeout()) })
    };
    let sendings: Vec<Sending> = tensors.into_iter().map(send).collect();
    sendings.into_iter().try_for_each(Sending::wait)
}

fn failure(error: &Error, ends: &Ends) -> Failure {
    let Ends { from, to, step, .. } = ends;
    match error.code() {
        Code::DeadlineExceeded => Failure::work(format!(
            "{error}; nobody requested it: run `sealane recv --from {from} --to {to} --step {step} --key KEY --out FILE` with \
             that key, or wait longer with --timeout-s"
        )),
        _ => Failure::work(error),
    }
}
