//! How `serve` and `--connect` authenticate to each other, and the flags for it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Instant;

use sealane_cli::Failure;
use sealane_transport::authentication::{Authentication, TlsFiles};

use super::{Control, PORT};
use crate::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::peer::{OtherHost, PeerProgram};

/// What both sides present to each other. Without it, neither checks the other.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Access {
    /// Between hosts: the shared secret of both sides, in a file that only its owner may read; `sealane keys secret` makes one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_certificate", "tls_key", "tls_authorities"])]
    secret_file: Option<PathBuf>,

    /// Between hosts: use TLS with this certificate; `sealane keys tls` makes it, the key and the authority
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_authorities"])]
    tls_certificate: Option<PathBuf>,

    /// The key of --tls-certificate, in a file that only its owner may read
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,

    /// The authorities that the other side's certificate may come from
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_authorities: Option<PathBuf>,
}

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, or others may read it.
    pub(crate) fn authentication(&self) -> Result<Authentication, Failure> {
        let Access { secret_file, tls_certificate, tls_key, tls_authorities } = self;
        let read = match (secret_file, tls_certificate, tls_key, tls_authorities) {
            (Some(file), ..) => Authentication::secret(file),
            (None, Some(certificate), Some(key), Some(authorities)) => {
                let [certificate, key, authorities] = [certificate, key, authorities].map(PathBuf::clone);
                Authentication::tls(&TlsFiles { certificate, key, authorities })
            }
            _ => return Ok(Authentication::default()),
        };
        read.map_err(Failure::input)
    }

    fn is_given(&self) -> bool {
        self.secret_file.is_some() || self.tls_certificate.is_some()
    }
}

/// The flags of a benchmark whose producers run on another host.
#[derive(Clone, Debug, clap::Args)]
// Its own name is that of a bench.
#[group(skip)]
pub(crate) struct Connect {
    /// Measure between this host and the one at this address, where `sealane bench serve` runs [default port: 7411]
    #[arg(long, value_name = "HOST[:PORT]")]
    connect: Option<String>,

    /// With --daemon: the socket of this host's daemon [default: where clients find it]
    #[arg(long, value_name = "PATH", requires = "connect")]
    socket: Option<PathBuf>,

    #[command(flatten)]
    access: Access,
}

impl Connect {
    /// True if producers run on another host.
    pub(crate) fn is_given(&self) -> bool {
        self.connect.is_some()
    }

    /// Connects to the other host, if one is given; otherwise producers are started as `here` says.
    ///
    /// # Errors
    /// Nobody serves there, or one of the sides does not accept the other.
    pub(crate) fn program(&self, here: PeerProgram) -> Result<PeerProgram, Failure> {
        let Some(name) = &self.connect else {
            if self.access.is_given() {
                return Err(Failure::input("--secret-file and --tls-certificate are for --connect HOST:PORT; add it"));
            }
            return Ok(here);
        };
        let authentication = self.access.authentication()?;
        let control = reach(name, |address, until| Control::call(address, &authentication, until))?;
        Ok(PeerProgram::on(OtherHost::new(control, self.socket.clone())?))
    }
}

/// Tries all addresses of a host; the last error counts.
fn reach<T>(name: &str, call: impl Fn(SocketAddr, Instant) -> Result<T, BenchError>) -> Result<T, Failure> {
    let resolved = name.to_socket_addrs().or_else(|_| (name.trim_matches(['[', ']']), PORT).to_socket_addrs());
    let addresses = resolved.map_err(|error| {
        Failure::input(format!("--connect {name}: {error}; give a host name or address, as in 10.0.0.2:{PORT}"))
    })?;
    let until = Instant::now() + CONNECT_LIMIT;
    let mut last = None;
    for address in addresses {
        match call(address, until) {
            Ok(reached) => return Ok(reached),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| Failure::input(format!("--connect {name}: the name has no address")), Failure::from))
}
