//! The shared secret: what each side of a connection says to show that it has it.
//!
//! A challenge and response in both directions (ISO/IEC 9798-4, three-pass mutual authentication): each side draws a number,
//! and proves with HMAC-SHA-256 (RFC 2104) over both numbers, the address that was called, and the name of its part, that it has
//! the secret. Neither a former conversation nor the other side's own words can be played back, and what is said to whoever has
//! taken over a peer's address opens no other.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::wire::PROOF_BYTES;

/// Shortest secret, in bytes: long enough that whoever has seen a proof cannot try all.
pub const SECRET_BYTES_MIN: usize = 32;
/// Longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 4096;

/// A number that was never drawn before.
pub(crate) type Nonce = [u8; PROOF_BYTES];

/// Whose words a proof is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Caller,
    Called,
}

/// See the module. Never printed.
pub(crate) struct Secret {
    key: hmac::Key,
    random: SystemRandom,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub(super) fn new(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < SECRET_BYTES_MIN {
            let found = bytes.len();
            return Err(format!(
                "the shared secret has {found} bytes, and must have at least {SECRET_BYTES_MIN}; \
                 make one with `sealane keys secret FILE`"
            ));
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes), random: SystemRandom::new() })
    }

    /// Draws a challenge.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn nonce(&self) -> Result<Nonce, std::io::Error> {
        draw(&self.random)
    }

    /// What `speaker` says to show that it has the secret.
    pub(crate) fn proof(&self, speaker: Speaker, call: &Call) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.key, &call.message(speaker));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// True if `proof` is what `speaker` must say. Takes the same time whatever it is.
    pub(crate) fn is_proof(&self, proof: &[u8], speaker: Speaker, call: &Call) -> bool {
        hmac::verify(&self.key, &call.message(speaker), proof).is_ok()
    }
}

/// A new secret as text: 32 random bytes in hexadecimal digits.
///
/// # Errors
/// The system has no random numbers.
pub fn random_secret() -> Result<String, std::io::Error> {
    let mut text = String::new();
    for byte in draw(&SystemRandom::new())? {
        text.push_str(&format!("{byte:02x}"));
    }
    text.push('\n');
    Ok(text)
}

fn draw(random: &SystemRandom) -> Result<Nonce, std::io::Error> {
    let mut nonce = [0; PROOF_BYTES];
    random.fill(&mut nonce).map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
    Ok(nonce)
}

/// What makes a call unlike any other.
pub(crate) struct Call {
    /// The caller's challenge.
    pub(crate) caller: Nonce,
    /// The called side's.
    pub(crate) called: Nonce,
    /// The transport address that was called.
    pub(crate) address: String,
}

impl Call {
    fn message(&self, speaker: Speaker) -> Vec<u8> {
        let part: &[u8] = match speaker {
            Speaker::Caller => b"sealane 1 caller",
            Speaker::Called => b"sealane 1 called",
        };
        [part, &self.caller, &self.called, self.address.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call { caller: [1; PROOF_BYTES], called: [2; PROOF_BYTES], address: "10.0.0.1:7000".into() }
    }

    #[test]
    fn a_proof_holds_for_its_secret_its_speaker_and_its_call_alone() {
        let (secret, other) = (Secret::new(&[7; 32]).unwrap(), Secret::new(&[8; 32]).unwrap());
        let proof = secret.proof(Speaker::Caller, &call());
        assert!(secret.is_proof(&proof, Speaker::Caller, &call()));
        assert!(!other.is_proof(&proof, Speaker::Caller, &call()));
        assert!(!secret.is_proof(&proof, Speaker::Called, &call()));
        let swapped = Call { caller: call().called, called: call().caller, ..call() };
        assert!(!secret.is_proof(&proof, Speaker::Caller, &swapped));
        let elsewhere = Call { address: "10.0.0.2:7000".into(), ..call() };
        assert!(!secret.is_proof(&proof, Speaker::Caller, &elsewhere));
        for bit in 0..8 * PROOF_BYTES {
            let mut altered = proof;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_proof(&altered, Speaker::Caller, &call()), "bit {bit}");
        }
    }

    #[test]
    fn challenges_differ_and_secrets_are_not_printed() {
        let secret = Secret::new(b"thirty-two bytes of a secret key").unwrap();
        assert_ne!(secret.nonce().unwrap(), secret.nonce().unwrap());
        assert_eq!(format!("{secret:?}"), "Secret");
        let error = Secret::new(&[0; SECRET_BYTES_MIN - 1]).unwrap_err();
        assert!(error.contains("31 bytes") && error.contains("at least 32"), "{error}");
    }
}
