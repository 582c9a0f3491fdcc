//! `sealane recv`: asks one task for tensors and writes them to a file.

use std::path::{Path, PathBuf};

use sealane_fusion::{Buffer, Code, Engine, Error, Task, Tensor, Unreceived};

use super::transfer::{Ends, Side, engine_ended};
use crate::files::{self, Format, NamedTensor};
use crate::{Context, Failure, host_memory};

/// The limit that a tensor meets when it does not fit into the slab.
const RECEIVE_SLAB: &str = "runtime.slab_receive_bytes";

/// Receive tensors from a task into an .npy or .safetensors file
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane recv --from ps0:2222 --to worker0:2222 --key dense --out dense.npy")]
pub struct Args {
    #[command(flatten)]
    ends: Ends,

    /// The tensor's key; repeatable for a .safetensors file
    #[arg(long, required = true)]
    key: Vec<String>,

    /// The file to write; its extension tells the format
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
    let (engine, tensor_bytes_max) = args.ends.start(Side::Receiver, context)?;
    let received = receive(&engine, args, tensor_bytes_max);
    engine.stop().map_err(engine_ended)?;
    let tensors = received?;
    files::write(&args.out, &tensors)?;
    let bytes: usize = tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
    let (count, from) = (tensors.len(), &args.ends.from);
    context.print(&format!("received {count} tensors, {bytes} bytes, from {from} into {}\n", args.out.display()))
}

/// Finds out what would keep the tensors from being written before they are taken from their sender.
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
        _ => Ok(()),
    }
}

fn receive(engine: &Engine, args: &Args, tensor_bytes_max: u64) -> Result<Vec<NamedTensor>, Failure> {
    let Ends { from, to, step, .. } = &args.ends;
    let task = engine.task(to).map_err(Failure::work)?;
    let receivings: Vec<_> = args.key.iter().map(|key| task.recv(from, *step, key)).collect();
    let mut tensors = Vec::with_capacity(receivings.len());
    for (key, receiving) in args.key.iter().zip(receivings) {
        let outcome = match receiving.wait() {
            Err(Unreceived { error: Error::ResourceExhausted { limit, .. }, .. }) if &*limit == RECEIVE_SLAB => {
                receive_large(&task, &args.ends, key, tensor_bytes_max)
            }
            outcome => outcome.map_err(Error::from),
        };
        tensors.push((key.clone(), outcome.map_err(|error| failure(&error, &args.ends))?));
    }
    Ok(tensors)
}

/// Asks again for a tensor that had no room in the slab, and so is with its sender still. The size is not known
/// beforehand: as much is reserved as may come, and the kernel makes those pages that are written.
fn receive_large(task: &Task, ends: &Ends, key: &str, tensor_bytes_max: u64) -> Result<Tensor, Error> {
    let room = host_memory::available_bytes().unwrap_or(u64::MAX).min(tensor_bytes_max) as usize;
    let full = |error| Error::full("this host's memory", format!("{room} bytes cannot be reserved ({error})"));
    // Making the zeroed memory ends the process where it fails, so this tries first.
    Vec::<u8>::new().try_reserve_exact(room).map_err(full)?;
    let destination = Buffer::from_vec(vec![0; room]);
    let tensor = task.recv_into(&ends.from, ends.step, key, destination).wait()?;
    let meta = tensor.meta().clone();
    let mut bytes = tensor.into_buffer().into_vec().unwrap_or_else(|in_slab| in_slab.to_vec());
    bytes.shrink_to_fit();
    Tensor::new(meta, bytes)
}

fn failure(error: &Error, ends: &Ends) -> Failure {
    let Ends { from, to, step, .. } = ends;
    let sender = format!("`sealane send FILE --from {from} --to {to} --step {step}`");
    match error.code() {
        Code::DeadlineExceeded => Failure::work(format!(
            "{error}; {from} answered but did not send it: run {sender} with a file that has that key, \
             or wait longer with --timeout-s"
        )),
        Code::Unavailable => Failure::work(format!("{error}; start {sender} there, or wait longer with --timeout-s")),
        _ => Failure::work(error),
    }
}
