//! `sealane send`: offers the tensors of a file to one task, and ends when all have arrived there.

use std::path::PathBuf;

use sealane_fusion::{Code, Engine, Error, LocalEngine};

use super::transfer::{Ends, Side, engine_ended};
use crate::files::{self, FileError, NamedTensor};
use crate::{Context, Failure};

/// Send the tensors of an .npy or .safetensors file to a task
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane send dense.npy --from ps0:2222 --to worker0:2222")]
pub struct Args {
    /// The file; its extension tells the format
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
/// The file, the endpoint map or a setting is wrong; or the tensors were not all asked for in time.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let tensors = files::read(&args.file, args.key.as_deref())?;
    let (count, bytes) = (tensors.len(), tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum::<usize>());
    let (engine, _) = args.ends.start(Side::Sender, context)?;
    let sent = offer(&engine, &args.ends, tensors);
    engine.stop().map_err(engine_ended)?;
    sent?;
    context.print(&format!("sent {count} tensors, {bytes} bytes, to {}\n", args.ends.to))
}

/// Deposits all tensors on the shard that serves the two tasks and waits for their releases.
fn offer(engine: &Engine, ends: &Ends, tensors: Vec<NamedTensor>) -> Result<(), Failure> {
    let (from, to, step) = (ends.from.clone(), ends.to.clone(), ends.step);
    let shard = engine.shard_of(&from, &to);
    let sent = engine.on_shard(shard, async move |local| deposit(&local, &from, &to, step, tensors).await);
    sent.wait().map_err(engine_ended)?.map_err(|error| failure(&error, ends))
}

async fn deposit(local: &LocalEngine, from: &str, to: &str, step: i64, tensors: Vec<NamedTensor>) -> Result<(), Error> {
    let pair = local.task(from)?.pair(to)?;
    let sendings: Vec<_> = tensors.into_iter().map(|(key, tensor)| pair.send(step, &key, tensor)).collect();
    for sending in sendings {
        sending.await?;
    }
    Ok(())
}

fn failure(error: &Error, ends: &Ends) -> Failure {
    let Ends { from, to, step, .. } = ends;
    match error.code() {
        Code::DeadlineExceeded => Failure::work(format!(
            "{error}; nobody asked for it: run `sealane recv --from {from} --to {to} --step {step}` with that key, \
             or wait longer with --timeout-s"
        )),
        _ => Failure::work(error),
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure::input(error)
    }
}
