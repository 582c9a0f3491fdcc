//! TLS 1.3's records once both sides are authenticated (RFC 8446, section 5): sealed in the buffer they are sent from, and
//! opened where they came, so that each end copies a byte once. rustls, whose own records cost a sender three copies,
//! provides the first and all later keys. No I/O.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets, HandshakeType};

/// A record's kind, a version that is ignored, and the length of the rest.
const HEAD_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Most data in one record.
pub(super) const PLAIN_BYTES: usize = 16 * 1024;
/// The longest rest of a record: sealed data may be padded.
const REST_BYTES_MAX: usize = PLAIN_BYTES + 256;
/// A key seals no more records than this: half of what AES-GCM tolerates (RFC 8446, section 5.5), which is the most that it
/// opens.
const RECORDS_PER_KEY: u64 = 1 << 23;
/// Most successive records that only update keys, are empty or carry nothing: each costs this side more than the peer.
const FRUITLESS_RECORDS: u32 = 32;
/// Longest message of TLS's own that may come in parts: a session ticket is much shorter.
const MESSAGE_BYTES: usize = 16 * 1024;
/// A message's kind, and the length of the rest.
const MESSAGE_HEAD_BYTES: usize = 4;

/// The result of opening a record.
pub(super) enum Opened<'a> {
    /// More of the record is needed.
    Part,
    /// Bytes that the peer has written.
    Data(&'a [u8]),
    /// A message of TLS's own.
    Own,
    /// The peer has said that nothing follows.
    Over,
}

/// Why a peer is no longer listened to, and the alert for it, unless the fault was reported by the peer itself.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: Error,
    pub(super) alert: Option<AlertDescription>,
}

impl Fault {
    fn of(alert: AlertDescription, what: &str) -> Fault {
        Fault { error: Error::General(what.into()), alert: Some(alert) }
    }
}

/// The source of further keys.
pub(super) enum Schedule {
    Caller(KernelConnection<ClientConnectionData>),
    Called(KernelConnection<ServerConnectionData>),
}

/// A key, and the number of records that it has sealed or opened.
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    records: u64,
}

impl Key {
    fn new((records, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key, Error> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher suite that was not offered".into())),
        };
        let unfit = || Error::General("a key that its cipher suite does not have".into());
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| unfit())?;
        let iv = iv.as_ref().try_into().map_err(|_| unfit())?;
        Ok(Key { key: LessSafeKey::new(key), iv, records })
    }

    /// The next record's nonce: no two of a key are the same.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.records.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

pub(super) struct Records {
    sending: Key,
    receiving: Key,
    schedule: Schedule,
    /// Part of a message of TLS's own.
    message: Vec<u8>,
    /// The peer has requested that this side update its key.
    is_key_wanted: bool,
    /// [`RECORDS_PER_KEY`].
    records_per_key: u64,
    /// Number of the peer's records since the last one with data.
    fruitless: u32,
}

impl Records {
    pub(super) fn new(ExtractedSecrets { tx, rx }: ExtractedSecrets, schedule: Schedule) -> Result<Records, Error> {
        let (sending, receiving) = (Key::new(tx)?, Key::new(rx)?);
        Ok(Records {
            sending,
            receiving,
            schedule,
            message: Vec::new(),
            is_key_wanted: false,
            records_per_key: RECORDS_PER_KEY,
            fruitless: 0,
        })
    }

    /// Appends a record with the bytes that `fill` appends: at most [`PLAIN_BYTES`].
    pub(super) fn seal(&mut self, sealed: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        if self.sending.records >= self.records_per_key {
            self.change_key(sealed)?;
        }
        self.seal_as(ContentType::ApplicationData, sealed, fill)
    }

    /// Appends the final alert to a peer: why it is no longer listened to.
    pub(super) fn seal_alert(&mut self, alert: AlertDescription, sealed: &mut Vec<u8>) -> Result<(), Error> {
        /// As in every alert that is sent here (RFC 8446, section 6).
        const FATAL: u8 = 2;
        self.seal_as(ContentType::Alert, sealed, |sealed| sealed.extend([FATAL, alert.into()]))
    }

    /// Appends the key update that the peer has requested; false if it has not. It comes before the next data (RFC 8446,
    /// section 4.6.3), and only once everything before it was sent: if a peer requests and does not read, only one answer
    /// waits.
    pub(super) fn answer(&mut self, sealed: &mut Vec<u8>) -> Result<bool, Error> {
        let is_wanted = std::mem::take(&mut self.is_key_wanted);
        if is_wanted {
            self.change_key(sealed)?;
        }
        Ok(is_wanted)
    }

    /// [Changes the key](Self::change_key), and requests that the peer change its own.
    #[cfg(test)]
    pub(super) fn ask_for_key(&mut self, sealed: &mut Vec<u8>) -> Result<(), Error> {
        self.change_key_saying(1, sealed)
    }

    /// Uses another key for sealing from now on, and tells the peer (RFC 8446, section 4.6.3).
    fn change_key(&mut self, sealed: &mut Vec<u8>) -> Result<(), Error> {
        const NOT_REQUESTED: u8 = 0;
        self.change_key_saying(NOT_REQUESTED, sealed)
    }

    fn change_key_saying(&mut self, request: u8, sealed: &mut Vec<u8>) -> Result<(), Error> {
        let words = [HandshakeType::KeyUpdate.into(), 0, 0, 1, request];
        self.seal_as(ContentType::Handshake, sealed, |sealed| sealed.extend(words))?;
        self.sending = Key::new(match &mut self.schedule {
            Schedule::Caller(schedule) => schedule.update_tx_secret()?,
            Schedule::Called(schedule) => schedule.update_tx_secret()?,
        })?;
        Ok(())
    }

    fn seal_as(
        &mut self,
        kind: ContentType,
        sealed: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        let at = sealed.len();
        sealed.extend([ContentType::ApplicationData.into(), 3, 3, 0, 0]);
        fill(sealed);
        sealed.push(kind.into());
        let rest = sealed.len() - at - HEAD_BYTES + TAG_BYTES;
        debug_assert!(rest <= REST_BYTES_MAX, "the peer would not take it");
        sealed[at + 3..at + HEAD_BYTES].copy_from_slice(&(rest as u16).to_be_bytes());
        let (head, body) = sealed[at..].split_at_mut(HEAD_BYTES);
        let nonce = self.sending.nonce();
        match self.sending.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body) {
            Ok(tag) => {
                sealed.extend_from_slice(tag.as_ref());
                Ok(())
            }
            Err(_) => {
                // Nothing may be sent unsealed.
                sealed.truncate(at);
                Err(Error::EncryptError)
            }
        }
    }

    /// Opens the first received record in place; also returns its length.
    pub(super) fn open<'a>(&mut self, incoming: &'a mut [u8]) -> Result<(usize, Opened<'a>), Fault> {
        let Some((head, rest)) = incoming.split_at_mut_checked(HEAD_BYTES) else { return Ok((0, Opened::Part)) };
        if ContentType::from(head[0]) != ContentType::ApplicationData {
            return Err(Fault::of(AlertDescription::UnexpectedMessage, "a record that is not sealed"));
        }
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if len > REST_BYTES_MAX {
            return Err(Fault::of(AlertDescription::RecordOverflow, "a record that is too long"));
        }
        let Some(sealed) = rest.get_mut(..len) else { return Ok((0, Opened::Part)) };
        if self.receiving.records >= 2 * RECORDS_PER_KEY {
            return Err(Fault::of(AlertDescription::InternalError, "a key that was used for too long"));
        }
        let nonce = self.receiving.nonce();
        let opened = self.receiving.key.open_in_place(nonce, Aad::from(&*head), sealed);
        let opened =
            opened.map_err(|_| Fault { error: Error::DecryptError, alert: Some(AlertDescription::BadRecordMac) })?;
        // Everything behind the kind is padding.
        let Some(end) = opened.iter().rposition(|byte| *byte != 0) else {
            return Err(Fault::of(AlertDescription::UnexpectedMessage, "a record without a kind"));
        };
        let (kind, bytes) = (ContentType::from(opened[end]), &opened[..end]);
        if bytes.len() > PLAIN_BYTES {
            return Err(Fault::of(AlertDescription::RecordOverflow, "a record that is too long"));
        }
        if kind != ContentType::Handshake && !self.message.is_empty() {
            return Err(Fault::of(AlertDescription::UnexpectedMessage, "a record in the middle of a message"));
        }
        let opened = match kind {
            ContentType::ApplicationData => Opened::Data(bytes),
            ContentType::Alert => heard(bytes)?,
            ContentType::Handshake => {
                self.take(bytes)?;
                Opened::Own
            }
            _ => return Err(Fault::of(AlertDescription::UnexpectedMessage, "a record of an unknown kind")),
        };
        match kind {
            ContentType::ApplicationData if !bytes.is_empty() => self.fruitless = 0,
            ContentType::ApplicationData | ContentType::Alert => self.fruitless += 1,
            // As the message says.
            _ => {}
        }
        if self.fruitless > FRUITLESS_RECORDS {
            return Err(Fault::of(AlertDescription::UnexpectedMessage, "too many records that bring nothing"));
        }
        Ok((HEAD_BYTES + len, opened))
    }

    /// Handles messages of TLS's own, which may come in parts.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() || self.message.len() + bytes.len() > MESSAGE_BYTES {
            return Err(Fault::of(AlertDescription::UnexpectedMessage, "a message that is empty, or too long"));
        }
        self.message.extend_from_slice(bytes);
        let messages = std::mem::take(&mut self.message);
        let mut rest = &messages[..];
        while let Some((&[kind, high, middle, low], after)) = rest.split_first_chunk::<MESSAGE_HEAD_BYTES>() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            let Some((body, after)) = after.split_at_checked(len) else { break };
            match (HandshakeType::from(kind), &self.schedule) {
                // Sessions are not resumed.
                (HandshakeType::NewSessionTicket, Schedule::Caller(_)) => {}
                // Nothing sealed with the previous key may follow in its record.
                (HandshakeType::KeyUpdate, _) if after.is_empty() => self.renew(body)?,
                _ => return Err(Fault::of(AlertDescription::UnexpectedMessage, "a message that nobody asked for")),
            }
            rest = after;
        }
        self.message.extend_from_slice(rest);
        Ok(())
    }

    /// The peer uses another key for sealing from now on.
    fn renew(&mut self, body: &[u8]) -> Result<(), Fault> {
        match body {
            [0] => {}
            [1] => self.is_key_wanted = true,
            _ => return Err(Fault::of(AlertDescription::IllegalParameter, "a change of keys of an unknown kind")),
        }
        self.fruitless += 1;
        let next = match &mut self.schedule {
            Schedule::Caller(schedule) => schedule.update_rx_secret(),
            Schedule::Called(schedule) => schedule.update_rx_secret(),
        };
        let failed = |error| Fault { error, alert: Some(AlertDescription::InternalError) };
        self.receiving = Key::new(next.map_err(failed)?).map_err(failed)?;
        Ok(())
    }
}

/// Handles the peer's alert.
fn heard(alert: &[u8]) -> Result<Opened<'static>, Fault> {
    let &[_, description] = alert else {
        return Err(Fault::of(AlertDescription::DecodeError, "an alert that is none"));
    };
    match AlertDescription::from(description) {
        AlertDescription::CloseNotify => Ok(Opened::Over),
        // The next alert gives the reason.
        AlertDescription::UserCanceled => Ok(Opened::Own),
        alert => Err(Fault { error: Error::AlertReceived(alert), alert: None }),
    }
}

#[cfg(test)]
mod tests;
