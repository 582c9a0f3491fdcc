//! `sealane keys`: makes the files for `[security]`: a shared secret, or an authority and a certificate for each host of an
//! endpoint map.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use sealane_transport::authentication::{Authority, Certificate, random_secret};
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};

use crate::files::replace_as;
use crate::{Context, Failure};

/// Default validity of a certificate in days: longer than most jobs, short enough that renewal is not forgotten.
const DAYS: u16 = 365;
/// An authority is valid for ten years, and no certificate outlives its authority.
const DAYS_MAX: i64 = 3650;
/// Modes of files that anyone may read, and of files that only their owner may read.
const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

/// Create a shared secret or certificates for authentication between hosts
#[derive(Debug, clap::Args)]
#[command(after_help = "To replace a secret while daemons run (they reload it automatically):\n  \
    1. append the new secret to the file of every host; callers may use either\n  \
    2. when all hosts have it, swap the two lines on every host; each then connects with the new one\n  \
    3. when all hosts have loaded that, remove the old line\n\
    To replace certificates: docs/credentials.md has the steps.\n\n\
    Example:\n  sealane keys secret sealane.secret")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a shared secret: one file, the same for every host of a job; `sealane keys --help` explains how to replace it
    #[command(after_help = "Example:\n  sealane keys secret sealane.secret")]
    Secret {
        /// The file to write; it must not exist
        file: PathBuf,
    },
    /// Create a certificate authority, and a certificate and key for each transport address of an endpoint map
    #[command(after_help = "Example:\n  sealane keys tls keys --endpoint-map jobs/.endpoint_map")]
    Tls {
        /// The directory to write; if it has an authority and its key, certificates that are there are kept, and made anew for addresses whose tasks have changed
        directory: PathBuf,
        /// The endpoint map
        #[arg(long, value_name = "FILE", default_value = ".endpoint_map")]
        endpoint_map: PathBuf,
        /// Days for which the certificates are valid: 1 to 3650, the lifetime of the authority
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u16).range(1..=DAYS_MAX))]
        days: u16,
    },
}

/// Runs `sealane keys`.
///
/// # Errors
///
/// A file is there already or cannot be written, or the endpoint map cannot be read.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.command {
        Command::Secret { file } => secret(file, context),
        Command::Tls { directory, endpoint_map, days } => tls(directory, endpoint_map, *days, context),
    }
}

fn secret(file: &Path, context: &Context) -> Result<(), Failure> {
    write(file, PRIVATE, &random_secret().map_err(Failure::work)?)?;
    let shown = file.display();
    context.print(&format!(
        "{shown}: a shared secret, readable only by its owner.\n\
         Copy it to every host of the job, keep its mode (600), and set this in its sealane.toml:\n\n\
         [security]\nsecret_file = \"{shown}\"\n"
    ))
}

fn tls(directory: &Path, map: &Path, days: u16, context: &Context) -> Result<(), Failure> {
    let map = EndpointMap::load(map)?;
    let until = SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400);
    let [certificate, key] = ["authorities.pem", "authority.key"].map(|name| directory.join(name));
    let authority = if key.exists() {
        let read = |file: &Path| fs::read_to_string(file).map_err(|error| Failure::file(file, error));
        Authority::of(&read(&certificate)?, &read(&key)?).map_err(|error| Failure::file(&key, error))?
    } else {
        make_directory(directory)?;
        let authority = Authority::new().map_err(Failure::work)?;
        write(&certificate, PUBLIC, &authority.certificate())?;
        write(&key, PRIVATE, &authority.key())?;
        authority
    };
    let mut text = String::new();
    let mut addresses: Vec<&TransportAddress> = map.addresses().collect();
    addresses.sort();
    addresses.dedup();
    for address in addresses {
        let tasks: Vec<TaskName> = map.tasks_at(address).cloned().collect();
        let directory = directory.join(file_name(address));
        let files = ["certificate.pem", "key.pem"].map(|name| directory.join(name));
        let found = fs::read_to_string(&files[0]).ok().and_then(|pem| Certificate::in_force(&pem));
        if files[1].exists() && found.is_some_and(|found| is_for(&found, &tasks)) {
            text += &format!("{}: kept\n", directory.display());
            continue;
        }
        let certified = authority.certify(&tasks, until).map_err(Failure::work)?;
        if !directory.exists() {
            make_directory(&directory)?;
        }
        for (file, mode, text) in [(&files[1], PRIVATE, &certified.key), (&files[0], PUBLIC, &certified.certificate)] {
            replace_as(file, mode, std::iter::once(text.as_bytes())).map_err(|error| {
                Failure::file(
                    file,
                    format!("cannot be written ({error}); free or open that place, then run this again"),
                )
            })?;
        }
        let names: Vec<&str> = tasks.iter().map(TaskName::as_str).collect();
        text += &format!("{}: for {}\n", directory.display(), names.join(", "));
    }
    context.print(&format!(
        "{text}\nCopy each directory, and {authorities}, to its host, keep the modes, and set this in its sealane.toml:\n\n\
         [security]\ntls_certificate = \"certificate.pem\"\ntls_key = \"key.pem\"\ntls_authorities = \"authorities.pem\"\n\n\
         {key} is the authority's key: whoever has it may speak for any task, so keep it away from the hosts.\n\
         To add hosts or tasks, run the same command again with the new map; to prevent that for good, delete the key.\n",
        authorities = certificate.display(),
        key = key.display(),
    ))
}

/// Whether a certificate names exactly these tasks: it must not let this host speak for one that has moved away.
fn is_for(certificate: &Certificate, tasks: &[TaskName]) -> bool {
    tasks.iter().all(|task| certificate.speaks_for(task))
        && certificate.tasks().iter().all(|named| tasks.iter().any(|task| task.as_str() == named))
}

/// A transport address as the name of a directory.
fn file_name(address: &TransportAddress) -> String {
    address.to_string().replace(['[', ']'], "").replace(':', "_")
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir(path).map_err(|error| {
        Failure::input(format!(
            "{}: cannot be made ({error}); name a directory that does not exist yet",
            path.display()
        ))
    })
}

/// Writes a new file, which never exists with another mode.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let failed = |error| {
        Failure::input(format!("{}: cannot be written ({error}); name a file that does not exist yet", path.display()))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
