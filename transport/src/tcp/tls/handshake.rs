//! TLS's handshake, by rustls, until both sides are authenticated. No I/O.

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{CommonState, Error};

use super::records::{Records, Schedule};
use crate::authentication::{Identity, PROTOCOL};

/// Steps that producing an alert may take.
const LAST_WORDS: usize = 4;

/// One side of the handshake.
pub(super) enum Handshake {
    Caller(UnbufferedClientConnection),
    Called(UnbufferedServerConnection),
}

/// The result of handling received data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Progress was made; call again.
    Again,
    /// More bytes are needed.
    Blocked,
    /// Both sides are authenticated.
    Done,
    /// The peer has said that nothing follows.
    Over,
}

impl Handshake {
    pub(super) fn calling(identity: &Identity) -> Result<Handshake, Error> {
        identity.calling().map(Handshake::Caller)
    }

    pub(super) fn called(identity: &Identity) -> Result<Handshake, Error> {
        identity.called().map(Handshake::Called)
    }

    /// Handles received data: returns how many bytes of it were consumed, and the result. Appends what must be sent to
    /// `sealed`, and to `opened` what the peer has written after its last message.
    pub(super) fn step(
        &mut self,
        incoming: &mut [u8],
        opened: &mut Vec<u8>,
        sealed: &mut Vec<u8>,
    ) -> (usize, Result<Step, Error>) {
        match self {
            Handshake::Caller(connection) => act(connection.process_tls_records(incoming), opened, sealed),
            Handshake::Called(connection) => act(connection.process_tls_records(incoming), opened, sealed),
        }
    }

    /// The handshake has failed: appends the alert for the peer. Partial messages stay where they came: the connection must
    /// never be shown less than it has seen. The alert comes before they are looked at again, which would fail again.
    pub(super) fn last_words(&mut self, mut incoming: &mut [u8], sealed: &mut Vec<u8>) {
        for _ in 0..LAST_WORDS {
            let before = sealed.len();
            let (discard, step) = self.step(incoming, &mut Vec::new(), sealed);
            if sealed.len() > before || !matches!(step, Ok(Step::Again)) {
                return;
            }
            incoming = &mut incoming[discard..];
        }
    }

    fn common(&self) -> &CommonState {
        match self {
            Handshake::Caller(connection) => connection,
            Handshake::Called(connection) => connection,
        }
    }

    /// A peer that names no protocol uses TLS for something else.
    pub(super) fn names_protocol(&self) -> bool {
        self.common().alpn_protocol() == Some(PROTOCOL)
    }

    /// Ends the handshake once it is [done](Step::Done) and everything was sent: returns the records that follow, and the
    /// peer's certificate.
    pub(super) fn end(self) -> Result<(Records, Option<CertificateDer<'static>>), Error> {
        let certificate = self.common().peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| certificate.clone().into_owned());
        let (secrets, schedule) = match self {
            Handshake::Caller(connection) => {
                let (secrets, schedule) = connection.dangerous_into_kernel_connection()?;
                (secrets, Schedule::Caller(schedule))
            }
            Handshake::Called(connection) => {
                let (secrets, schedule) = connection.dangerous_into_kernel_connection()?;
                (secrets, Schedule::Called(schedule))
            }
        };
        Ok((Records::new(secrets, schedule)?, certificate))
    }
}

/// Handles one state of the connection.
fn act<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    opened: &mut Vec<u8>,
    sealed: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let odd = |what: String| Err(Error::General(what));
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut records)) => {
            let mut step = Ok(Step::Again);
            while let Some(record) = records.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        opened.extend_from_slice(record.payload);
                    }
                    Err(error) => {
                        step = Err(error);
                        break;
                    }
                }
            }
            step
        }
        Ok(ConnectionState::EncodeTlsData(mut words)) => {
            let needed = match words.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
                _ => 0,
            };
            let at = sealed.len();
            sealed.resize(at + needed, 0);
            match words.encode(&mut sealed[at..]) {
                Ok(count) => {
                    sealed.truncate(at + count);
                    Ok(Step::Again)
                }
                Err(error) => odd(error.to_string()),
            }
        }
        Ok(ConnectionState::TransmitTlsData(words)) => {
            // They are sent with the sealed data, in order.
            words.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Blocked),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Over),
        Ok(other) => odd(format!("unexpected state {other:?}")),
    };
    (discard, step)
}
