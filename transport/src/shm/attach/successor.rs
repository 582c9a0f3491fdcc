//! The side of the daemon that takes over: blocks the calling thread, at most until each step's deadline.

use std::{os::fd::OwnedFd, path::Path, time::Instant};

use super::{
    Answer, AttachError, Credentials, Estate, HAND_OVER_VERSION, Request,
    client::{Conversation, read_text, refusal},
    credentials,
};
use crate::job::JobName;
use crate::shm::limits::{ESTATE_BYTES_MAX, LISTENERS_MAX, SHARDS_MAX};

/// A daemon that is about to take the place of the one at the other end. If this is dropped before [`taken`](Self::taken),
/// that one keeps serving.
#[derive(Debug)]
pub struct Successor(Conversation);

/// What the predecessor shows.
#[derive(Debug)]
pub struct Shown {
    pub estate: Estate,
    /// The predecessor's user, as reported by the kernel.
    pub predecessor: Credentials,
    /// The locks of its CPUs, in the estate's order: shared with it.
    pub locks: Vec<OwnedFd>,
}

/// What the predecessor has handed over.
#[derive(Debug)]
pub struct Inheritance {
    /// The sockets that listen at transport addresses.
    pub listeners: Vec<(String, OwnedFd)>,
    /// The socket that serves metrics.
    pub metrics: Option<OwnedFd>,
    pub client_socket: OwnedFd,
    /// The locked file beside `client_socket`.
    pub lock: OwnedFd,
}

impl Successor {
    /// Asks the daemon at `path` for its state, on behalf of a daemon of `job`.
    ///
    /// # Errors
    /// [`AttachError`]; the daemon there keeps serving.
    pub fn announce(path: &Path, job: Option<JobName>, deadline: Instant) -> Result<(Successor, Shown), AttachError> {
        let request = Request::TakeOver { version: HAND_OVER_VERSION, job };
        let mut talk = Conversation::begin(path, &request, deadline)?;
        let predecessor = credentials(&talk.socket)?;
        let (answer, memory) = talk.next()?;
        let text = match answer {
            Answer::Estate { bytes } => read_text(memory, bytes, ESTATE_BYTES_MAX)?,
            other => return Err(unexpected(other)),
        };
        let malformed = |error: serde_json::Error| AttachError::answer(error.to_string());
        let estate: Estate = serde_json::from_slice(&text).map_err(malformed)?;
        if estate.cpus.len() > SHARDS_MAX {
            return Err(AttachError::answer(format!("{} CPUs, at most {SHARDS_MAX} are possible", estate.cpus.len())));
        }
        let mut locks = Vec::with_capacity(estate.cpus.len());
        for &cpu in &estate.cpus {
            match talk.next()? {
                (Answer::Cpu { cpu: found }, mut lock) if found == cpu && lock.len() == 1 => locks.append(&mut lock),
                (other, _) => return Err(unexpected(other)),
            }
        }
        Ok((Successor(talk), Shown { estate, predecessor, locks }))
    }

    /// Asks the predecessor to drain and hand over, which may take as long as its drain.
    ///
    /// # Errors
    /// [`AttachError`]; if the daemon there is alive, it keeps serving.
    pub fn inherit(&mut self, deadline: Instant) -> Result<Inheritance, AttachError> {
        let Successor(talk) = self;
        talk.deadline = deadline;
        talk.ask(&Request::HandOver { version: HAND_OVER_VERSION })?;
        let (mut listeners, mut metrics) = (Vec::new(), None);
        loop {
            let (answer, mut descriptors) = talk.next()?;
            let (last, first) = (descriptors.pop(), descriptors.pop());
            match (answer, first, last) {
                (Answer::Listener { address }, None, Some(socket)) if listeners.len() < LISTENERS_MAX => {
                    listeners.push((address, socket));
                }
                (Answer::Metrics, None, Some(socket)) => metrics = Some(socket),
                (Answer::ClientSocket, Some(client_socket), Some(lock)) => {
                    return Ok(Inheritance { listeners, metrics, client_socket, lock });
                }
                (other, _, _) => return Err(unexpected(other)),
            }
        }
    }

    /// Takes over what was handed over. From then on the predecessor stops.
    ///
    /// # Errors
    /// [`AttachError`]; if the daemon there is alive, it keeps serving.
    pub fn taken(&mut self, deadline: Instant) -> Result<(), AttachError> {
        let Successor(talk) = self;
        talk.deadline = deadline;
        talk.ask(&Request::Taken { version: HAND_OVER_VERSION })?;
        match talk.next()?.0 {
            Answer::Yours => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(answer: Answer) -> AttachError {
    match answer {
        Answer::Refused(refused) => refusal(refused),
        _ => AttachError::answer("it does not hand over as expected"),
    }
}
