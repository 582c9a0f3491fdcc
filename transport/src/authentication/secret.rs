//! The shared secret: how each side of a connection proves that it has it.
//!
//! A challenge and response in both directions (ISO/IEC 9798-4, three-pass mutual authentication): each side draws a nonce, and
//! proves that it has the secret with an HMAC-SHA-256 (RFC 2104) over both nonces, the called address, and its role. Neither an
//! earlier conversation nor the other side's own messages can be replayed, and a proof given to a process that took over a
//! peer's address is useless elsewhere.
//!
//! While a job's secret is being replaced, two are valid: a side connects with its first, and accepts callers with either,
//! answering with the same one.

use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::wire::PROOF_BYTES;

/// Minimum length of a secret in bytes: enough that a recorded proof cannot be brute-forced.
pub const SECRET_BYTES_MIN: usize = 32;
/// Longest file of secrets, in bytes.
pub const SECRET_BYTES_MAX: usize = 4096;
/// Secrets that may be valid at once: the old and the new one.
pub const SECRETS_MAX: usize = 2;

/// A random number never drawn before.
pub(crate) type Nonce = [u8; PROOF_BYTES];

/// The side that a proof comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Caller,
    Called,
}

/// The shared secret; never printed.
pub(crate) struct Secret {
    /// This side calls with the first; callers may use any.
    keys: Vec<hmac::Key>,
    /// A digest of the text that the keys came from, to detect changes.
    pub(super) digest: [u8; 32],
    random: SystemRandom,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Parses a text with one secret per line.
    pub(super) fn new(text: &[u8]) -> Result<Self, String> {
        let lines: Vec<&[u8]> = text.trim_ascii().split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).collect();
        if lines.len() > SECRETS_MAX {
            let found = lines.len();
            return Err(format!(
                "{found} lines, each a shared secret, and {SECRETS_MAX} may be valid at once; remove the oldest"
            ));
        }
        if let Some(short) = lines.iter().find(|line| line.len() < SECRET_BYTES_MIN) {
            let found = short.len();
            return Err(format!(
                "the shared secret has {found} bytes, and must have at least {SECRET_BYTES_MIN} in one line; \
                 make one with `sealane keys secret FILE`"
            ));
        }
        let keys = lines.iter().map(|line| hmac::Key::new(hmac::HMAC_SHA256, line)).collect();
        Ok(Self { keys, digest: sha256(&lines), random: SystemRandom::new() })
    }

    /// Draws a challenge.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn nonce(&self) -> Result<Nonce, std::io::Error> {
        draw(&self.random)
    }

    /// What this side sends as the caller to prove that it has the secret.
    pub(crate) fn proof(&self, call: &Call) -> [u8; PROOF_BYTES] {
        sign(&self.keys[0], Speaker::Caller, call)
    }

    /// What this side sends as the called side to a caller that has sent `proof`, to prove that it has the same secret. `None`
    /// if `proof` is wrong. Each secret takes the same time whatever the proof is.
    pub(crate) fn answer(&self, proof: &[u8], call: &Call) -> Option<[u8; PROOF_BYTES]> {
        let is_by = |key: &&hmac::Key| hmac::verify(key, &call.message(Speaker::Caller), proof).is_ok();
        self.keys.iter().find(is_by).map(|key| sign(key, Speaker::Called, call))
    }

    /// True if `answer` comes from a called side that has the secret with which this side calls.
    pub(crate) fn is_answer(&self, answer: &[u8], call: &Call) -> bool {
        hmac::verify(&self.keys[0], &call.message(Speaker::Called), answer).is_ok()
    }
}

fn sign(key: &hmac::Key, speaker: Speaker, call: &Call) -> [u8; PROOF_BYTES] {
    let tag = hmac::sign(key, &call.message(speaker));
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The digest of all parts, each with its length.
pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let lengths = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes());
    let all: Vec<u8> = lengths.chain(parts.concat()).collect();
    digest(&SHA256, &all).as_ref().try_into().expect("SHA-256 has 32 bytes")
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

/// What makes a call unique.
pub(crate) struct Call {
    /// The caller's challenge.
    pub(crate) caller: Nonce,
    /// The called side's challenge.
    pub(crate) called: Nonce,
    /// The called transport address.
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
        let proof = secret.proof(&call());
        let answer = secret.answer(&proof, &call()).unwrap();
        assert!(secret.is_answer(&answer, &call()));
        assert!(other.answer(&proof, &call()).is_none() && !other.is_answer(&answer, &call()));
        assert!(!secret.is_answer(&proof, &call()) && secret.answer(&answer, &call()).is_none());
        let swapped = Call { caller: call().called, called: call().caller, ..call() };
        assert!(secret.answer(&proof, &swapped).is_none() && !secret.is_answer(&answer, &swapped));
        let elsewhere = Call { address: "10.0.0.2:7000".into(), ..call() };
        assert!(secret.answer(&proof, &elsewhere).is_none() && !secret.is_answer(&answer, &elsewhere));
        for bit in 0..8 * PROOF_BYTES {
            let (mut proof, mut answer) = (proof, answer);
            proof[bit / 8] ^= 1 << (bit % 8);
            answer[bit / 8] ^= 1 << (bit % 8);
            assert!(secret.answer(&proof, &call()).is_none() && !secret.is_answer(&answer, &call()), "bit {bit}");
        }
    }

    #[test]
    fn of_two_secrets_the_first_is_called_with_and_either_is_answered_by_itself() {
        let (old, new) = ([b'o'; 32], [b'n'; 32]);
        let of = |lines: &[[u8; 32]]| Secret::new(&[lines.join(&b'\n'), vec![b'\n']].concat()).unwrap();
        let talk = |caller: &Secret, called: &Secret| {
            let answer = called.answer(&caller.proof(&call()), &call());
            answer.is_some_and(|answer| caller.is_answer(&answer, &call()))
        };
        // The steps of a change of secrets: hosts that are at most one step apart can talk, whichever of them calls.
        let steps = [of(&[old]), of(&[old, new]), of(&[new, old]), of(&[new])];
        for (at, one) in steps.iter().enumerate() {
            for (other_at, other) in steps.iter().enumerate() {
                if at.abs_diff(other_at) <= 1 {
                    assert!(talk(one, other), "step {at} calls step {other_at}");
                }
            }
        }
        // Steps were skipped.
        assert!(!talk(&steps[2], &steps[0]) && !talk(&steps[0], &steps[3]) && !talk(&steps[1], &steps[3]));
        let error = Secret::new(&[b'x'; 32].repeat(3).chunks(32).collect::<Vec<_>>().join(&b'\n')).unwrap_err();
        assert!(error.contains("3 lines") && error.contains("2 may be valid"), "{error}");
        let error = Secret::new(&[&old[..], b"short"].join(&b'\n')).unwrap_err();
        assert!(error.contains("5 bytes") && error.contains("in one line"), "{error}");
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
