//! The handshake messages: identity, target and features of both sides. They come before any frame, in both directions.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{WireError, fixed, text};
use crate::job::JobName;
use crate::limits::{HELLO_BYTES_MAX, JOB_NAME_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX, TASKS_PER_HELLO};

/// The first eight bytes of every link.
pub const MAGIC: [u8; 8] = *b"SEALANE\n";
/// Oldest wire version that this side speaks.
pub const VERSION_MIN: u16 = 6;
/// Newest wire version that this side speaks.
pub const VERSION_MAX: u16 = 6;
/// Bytes before a greeting's body.
pub const PREFACE_BYTES: usize = size_of::<Preface>();

/// The feature bit of a side that can negotiate RDMA verbs after the greeting.
pub const FEATURE_VERBS: u64 = 1;
/// The feature bit of a caller that only asks who is there: it gets a welcome that describes the called side, and no
/// session. A side that does not know the bit refuses the caller, whose transport address is empty.
pub const FEATURE_PROBE: u64 = 2;
/// The feature bit of a caller that wants a connection only for the streams of two tasks, and no session: see
/// [`Hello::for_streams`]. A side that does not know the bit refuses the caller, as with a probe.
pub const FEATURE_STREAMS: u64 = 4;

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_REJECT: u8 = 3;
const KIND_CHALLENGE: u8 = 4;
const KIND_PROOF: u8 = 5;

/// Bytes of a challenge and of a proof (HMAC with SHA-256).
pub const PROOF_BYTES: usize = 32;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Preface {
    magic: [u8; 8],
    kind: u8,
    code: u8,
    version_min: U16,
    version_max: U16,
    reserved: U16,
    body_bytes: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloFixed {
    features: U64,
    incarnation: U64,
    remembers: U64,
    tensor_bytes_max: U64,
    epoch: U32,
    shards: U16,
    shard: U16,
    lane: U32,
    tasks: U16,
    address_bytes: U16,
    job_bytes: U16,
}

const _: () = {
    assert!(size_of::<Preface>() == 20);
    assert!(size_of::<HelloFixed>() == 50);
    assert!(TASKS_PER_HELLO <= u16::MAX as usize);
};

/// What each side says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Feature bits; a feature is used when both sides set its bit. There are [`FEATURE_VERBS`] and, for callers,
    /// [`FEATURE_PROBE`] and [`FEATURE_STREAMS`].
    pub features: u64,
    /// A random number drawn when the process started: a peer with another one has restarted.
    pub incarnation: u64,
    /// The other side's incarnation with which this side continues its session; 0 if the session starts anew. A session
    /// continues only if each side remembers the other.
    pub remembers: u64,
    /// Largest tensor that this side accepts, in bytes.
    pub tensor_bytes_max: u64,
    /// Number of links that this session has had, by this side's count.
    pub epoch: u32,
    pub shards: u16,
    /// The shard that sends this.
    pub shard: u16,
    /// The lane (see [`crate::lane`]) that the link is for: it selects the called side's shard.
    pub lane: u32,
    /// This side's transport address, as in the endpoint map.
    pub address: String,
    /// The job of this side: links connect only sides of the same job, or two without one.
    pub job: Option<JobName>,
    /// The tasks served here; requests name them by their index in this list.
    pub tasks: Vec<String>,
}

/// Why a call was not answered with a welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectCode {
    /// No common version.
    Version = 1,
    /// Both sides called at once, and the other call is kept.
    Crossed = 2,
    /// A limit of the called side is reached.
    Full = 3,
    /// The called side is stopping, or cannot accept this caller.
    Refused = 4,
    /// The caller has not proven that it is authorized.
    Unauthenticated = 5,
    /// The two sides are of different jobs.
    Job = 6,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    pub code: RejectCode,
    pub reason: String,
}

/// One greeting, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// From the caller.
    Hello(Hello),
    /// The called side accepts.
    Welcome(Hello),
    Reject(Reject),
    /// A random number, to be answered with a proof of the shared secret. If used, it comes before the hello.
    Challenge([u8; PROOF_BYTES]),
    /// Proof that its sender has the shared secret.
    Proof([u8; PROOF_BYTES]),
}

impl Greeting {
    /// Reads the greeting at the front of `bytes`, and returns its length too; `None` if it is not complete yet.
    ///
    /// Foreign bytes are detected by the first that differs, without waiting for more.
    ///
    /// # Errors
    /// Any [`WireError`]; nothing more can be read from such a peer.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Greeting, usize)>, WireError> {
        let shown = bytes.len().min(MAGIC.len());
        if bytes[..shown] != MAGIC[..shown] {
            let shown = bytes.len().min(16);
            return Err(WireError::NotSealane(String::from_utf8_lossy(&bytes[..shown]).into_owned()));
        }
        let Ok((preface, rest)) = Preface::ref_from_prefix(bytes) else { return Ok(None) };
        let (theirs_min, theirs_max) = (preface.version_min.get(), preface.version_max.get());
        // A reject is read whatever its version: it says which version would be accepted.
        if preface.kind != KIND_REJECT && (theirs_max < VERSION_MIN || theirs_min > VERSION_MAX) {
            return Err(WireError::Version { theirs_min, theirs_max });
        }
        let body_bytes = preface.body_bytes.get() as usize;
        let limit = match preface.kind {
            KIND_CHALLENGE | KIND_PROOF => PROOF_BYTES,
            _ => HELLO_BYTES_MAX,
        };
        if body_bytes > limit {
            return Err(WireError::TooLong { what: "greeting", found: body_bytes as u64, limit: limit as u64 });
        }
        let Some(body) = rest.get(..body_bytes) else { return Ok(None) };
        let greeting = match preface.kind {
            KIND_HELLO => Greeting::Hello(Hello::parse(body)?),
            KIND_WELCOME => Greeting::Welcome(Hello::parse(body)?),
            KIND_REJECT => Greeting::Reject(Reject {
                code: RejectCode::parse(preface.code)?,
                reason: text("reason", &body[..body.len().min(REASON_BYTES_MAX)])?.to_owned(),
            }),
            KIND_CHALLENGE => Greeting::Challenge(*fixed("challenge", body)?.0),
            KIND_PROOF => Greeting::Proof(*fixed("proof", body)?.0),
            found => return Err(WireError::BadValue { what: "handshake message kind", found: u64::from(found) }),
        };
        Ok(Some((greeting, PREFACE_BYTES + body_bytes)))
    }

    /// True if `bytes` begin like a hello or a welcome, of any length: for a side that wants a proof first and does not read
    /// that much from a stranger.
    pub fn is_introduction(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC) && matches!(bytes.get(MAGIC.len()), Some(&(KIND_HELLO | KIND_WELCOME)))
    }

    /// The number of this kind of greeting.
    pub fn kind(&self) -> u8 {
        match self {
            Greeting::Hello(_) => KIND_HELLO,
            Greeting::Welcome(_) => KIND_WELCOME,
            Greeting::Reject(_) => KIND_REJECT,
            Greeting::Challenge(_) => KIND_CHALLENGE,
            Greeting::Proof(_) => KIND_PROOF,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let (code, body) = match self {
            Greeting::Hello(hello) | Greeting::Welcome(hello) => (0, hello.body()),
            Greeting::Reject(reject) => {
                let cut = reject.reason.floor_char_boundary(REASON_BYTES_MAX);
                (reject.code as u8, reject.reason.as_bytes()[..cut].to_vec())
            }
            Greeting::Challenge(bytes) | Greeting::Proof(bytes) => (0, bytes.to_vec()),
        };
        let preface = Preface {
            magic: MAGIC,
            kind: self.kind(),
            code,
            version_min: U16::new(VERSION_MIN),
            version_max: U16::new(VERSION_MAX),
            reserved: U16::ZERO,
            body_bytes: U32::new(body.len() as u32),
        };
        [preface.as_bytes(), &body].concat()
    }
}

impl RejectCode {
    fn parse(code: u8) -> Result<Self, WireError> {
        match code {
            1 => Ok(Self::Version),
            2 => Ok(Self::Crossed),
            3 => Ok(Self::Full),
            4 => Ok(Self::Refused),
            5 => Ok(Self::Unauthenticated),
            6 => Ok(Self::Job),
            found => Err(WireError::BadValue { what: "reject code", found: u64::from(found) }),
        }
    }
}

impl Hello {
    /// The hello of a caller that only asks who is there.
    pub fn probe() -> Hello {
        Hello {
            features: FEATURE_PROBE,
            incarnation: 0,
            remembers: 0,
            tensor_bytes_max: 0,
            epoch: 0,
            shards: 1,
            shard: 0,
            lane: 0,
            address: String::new(),
            job: None,
            tasks: Vec::new(),
        }
    }

    /// The hello of a caller that wants a connection for streams between one of its tasks and one of the called side. `number`
    /// distinguishes it from other connections of the two tasks.
    pub fn for_streams(from: &str, to: &str, number: u64) -> Hello {
        Hello {
            features: FEATURE_STREAMS,
            incarnation: number,
            tasks: vec![from.to_owned(), to.to_owned()],
            ..Hello::probe()
        }
    }

    /// The caller's task, the called task and the number, if the caller wants a connection for streams.
    pub fn streams(&self) -> Option<(&str, &str, u64)> {
        match &self.tasks[..] {
            [from, to] if self.features & FEATURE_STREAMS != 0 => Some((from, to, self.incarnation)),
            _ => None,
        }
    }

    pub fn is_probe(&self) -> bool {
        self.features & FEATURE_PROBE != 0
    }

    fn parse(body: &[u8]) -> Result<Hello, WireError> {
        let (fields, mut rest) = fixed::<HelloFixed>("greeting", body)?;
        let (shards, shard) = (fields.shards.get(), fields.shard.get());
        if shard >= shards {
            return Err(WireError::BadValue { what: "handshake's shard", found: u64::from(shard) });
        }
        let tasks = fields.tasks.get() as usize;
        if tasks > TASKS_PER_HELLO {
            let limit = TASKS_PER_HELLO as u64;
            return Err(WireError::TooLong { what: "handshake's list of tasks", found: tasks as u64, limit });
        }
        let address = name(&mut rest, fields.address_bytes.get())?;
        let job = job(&mut rest, fields.job_bytes.get())?;
        let mut names = Vec::new();
        for _ in 0..tasks {
            let (length, after) = fixed::<U16>("task name", rest)?;
            let length = length.get();
            rest = after;
            names.push(name(&mut rest, length)?);
        }
        Ok(Hello {
            features: fields.features.get(),
            incarnation: fields.incarnation.get(),
            remembers: fields.remembers.get(),
            tensor_bytes_max: fields.tensor_bytes_max.get(),
            epoch: fields.epoch.get(),
            shards,
            shard,
            lane: fields.lane.get(),
            address,
            job,
            tasks: names,
        })
    }

    /// # Panics
    /// If there are more tasks or longer names than the limits allow: the engine checks its own at startup.
    fn body(&self) -> Vec<u8> {
        assert!(self.tasks.len() <= TASKS_PER_HELLO, "the engine checks its task count at start");
        let fields = HelloFixed {
            features: U64::new(self.features),
            incarnation: U64::new(self.incarnation),
            remembers: U64::new(self.remembers),
            tensor_bytes_max: U64::new(self.tensor_bytes_max),
            epoch: U32::new(self.epoch),
            shards: U16::new(self.shards),
            shard: U16::new(self.shard),
            lane: U32::new(self.lane),
            tasks: U16::new(self.tasks.len() as u16),
            address_bytes: U16::new(self.address.len() as u16),
            job_bytes: U16::new(self.job.as_ref().map_or(0, |job| job.as_str().len() as u16)),
        };
        let mut body = fields.as_bytes().to_vec();
        body.extend_from_slice(self.address.as_bytes());
        body.extend_from_slice(self.job.as_ref().map_or("", JobName::as_str).as_bytes());
        for task in &self.tasks {
            body.extend_from_slice(&(task.len() as u16).to_le_bytes());
            body.extend_from_slice(task.as_bytes());
        }
        assert!(body.len() <= HELLO_BYTES_MAX, "the engine checks its task names at start");
        body
    }
}

/// The sender's job; an empty name stands for none.
fn job(rest: &mut &[u8], length: u16) -> Result<Option<JobName>, WireError> {
    let bytes = usize::from(length);
    if bytes > JOB_NAME_BYTES_MAX {
        let (found, limit) = (length.into(), JOB_NAME_BYTES_MAX as u64);
        return Err(WireError::TooLong { what: "job's name", found, limit });
    }
    let name = name(rest, length)?;
    if name.is_empty() {
        return Ok(None);
    }
    let is_malformed = |_| WireError::BadValue { what: "length of a malformed job's name", found: length.into() };
    name.parse().map(Some).map_err(is_malformed)
}

fn name(rest: &mut &[u8], length: u16) -> Result<String, WireError> {
    let length = usize::from(length);
    if length > NAME_BYTES_MAX {
        return Err(WireError::TooLong { what: "name", found: length as u64, limit: NAME_BYTES_MAX as u64 });
    }
    let Some((name, after)) = rest.split_at_checked(length) else {
        return Err(WireError::Truncated { what: "name", found: rest.len() });
    };
    *rest = after;
    Ok(text("name", name)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            features: 0,
            incarnation: 77,
            remembers: 78,
            tensor_bytes_max: 1 << 30,
            epoch: 2,
            shards: 4,
            shard: 3,
            lane: 9,
            address: "10.0.0.1:7000".into(),
            job: Some("train-7".parse().unwrap()),
            tasks: vec!["10.0.0.1:2222".into(), "10.0.0.1:2223".into()],
        }
    }

    #[test]
    fn greetings_read_back_as_written_and_wait_for_all_bytes() {
        let reject = Reject { code: RejectCode::Full, reason: "4096 links".into() };
        let words = [Greeting::Challenge([7; PROOF_BYTES]), Greeting::Proof([9; PROOF_BYTES])];
        let others = [Greeting::Hello(hello()), Greeting::Welcome(hello()), Greeting::Reject(reject)];
        for greeting in words.into_iter().chain(others) {
            let bytes = greeting.to_bytes();
            assert_eq!(Greeting::parse(&bytes), Ok(Some((greeting, bytes.len()))));
            for shorter in 0..bytes.len() {
                assert_eq!(Greeting::parse(&bytes[..shorter]), Ok(None));
            }
        }
    }

    #[test]
    fn a_shard_beyond_the_shards_and_a_long_name_are_refused() {
        let wrong = Hello { shard: 4, ..hello() };
        assert!(matches!(
            Greeting::parse(&Greeting::Hello(wrong).to_bytes()),
            Err(WireError::BadValue { what: "handshake's shard", found: 4 })
        ));
        let long = Hello { address: "x".repeat(NAME_BYTES_MAX + 1), ..hello() };
        assert!(matches!(
            Greeting::parse(&Greeting::Hello(long).to_bytes()),
            Err(WireError::TooLong { what: "name", .. })
        ));
    }

    #[test]
    fn job_name_is_checked_when_read() {
        let with = |place: usize, byte: u8| {
            let mut bytes = Greeting::Hello(hello()).to_bytes();
            bytes[place] = byte;
            Greeting::parse(&bytes)
        };
        let (job_bytes, job) = (PREFACE_BYTES + 48, PREFACE_BYTES + 50 + "10.0.0.1:7000".len());
        let Ok(Some((Greeting::Hello(same), _))) = with(job, b't') else { panic!("it is a hello") };
        assert_eq!(same, hello());
        for byte in [b' ', b'\n', 0x7f] {
            let found = with(job, byte);
            assert!(matches!(found, Err(WireError::BadValue { what: "length of a malformed job's name", .. })));
        }
        assert!(matches!(with(job_bytes + 1, 1), Err(WireError::TooLong { what: "job's name", found: 263, .. })));
    }

    #[test]
    fn a_probe_has_no_address_from_which_a_session_could_be_made() {
        let probe = Hello::probe();
        assert!(probe.is_probe() && !hello().is_probe());
        assert!(probe.address.parse::<crate::endpoint_map::TransportAddress>().is_err());
        let bytes = Greeting::Hello(probe.clone()).to_bytes();
        assert_eq!(Greeting::parse(&bytes), Ok(Some((Greeting::Hello(probe), bytes.len()))));
    }

    #[test]
    fn a_caller_that_wants_a_connection_for_streams_names_both_tasks_and_has_no_session_either() {
        let wish = Hello::for_streams("worker0:2222", "ps0:2222", u64::MAX);
        let bytes = Greeting::Hello(wish.clone()).to_bytes();
        let Ok(Some((Greeting::Hello(came), _))) = Greeting::parse(&bytes) else { panic!("it is a hello") };
        assert_eq!(came.streams(), Some(("worker0:2222", "ps0:2222", u64::MAX)));
        assert!(!came.is_probe() && came.address.parse::<crate::endpoint_map::TransportAddress>().is_err());
        assert_eq!((hello().streams(), Hello::probe().streams()), (None, None));
        assert_eq!(Hello { tasks: vec!["one".into()], ..wish }.streams(), None);
    }
}
