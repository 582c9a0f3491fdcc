//! The codec of records: one declaration of an enum gives its kinds, its fields and their layout. Works only in private memory; every
//! length is checked against the record's.
//!
//! A record's content is a *head* and then *sections*. The head has the fields of fixed size, as they are declared and without gaps, and 16
//! bits for each section: its length, and in the upper bits which form it has. It is padded to whole words. The sections follow in the order
//! of their declaration. What is behind them, to the end of the last word, is zero, and ignored when it is read.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    call_list::CallList,
    failure::Failure,
    fields::{Malformed, Sections, Sink, Span, TooLong, cut},
    key_list::KeyList,
    limits::{FIXED_BYTES_MAX, INLINE_BYTES_MAX, KEY_LIST_BYTES_MAX, NUMBERS_PER_RECORD},
};
use crate::{
    error::Error,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, NAMED_ROWS_BYTES_MAX, REASON_BYTES_MAX},
    named_rows::NamedRows,
};

/// The most that a section may have, in bytes or entries, and what it is called in errors.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Limit {
    pub(super) what: &'static str,
    pub(super) most: usize,
}

pub(super) const KEY: Limit = Limit { what: "key", most: KEY_BYTES_MAX };
/// Of a queue.
pub(super) const QUEUE: Limit = Limit { what: "name", most: KEY_BYTES_MAX };
/// Of a task.
pub(super) const NAME: Limit = Limit { what: "name", most: NAME_BYTES_MAX };
/// A longer reason is cut.
pub(super) const REASON: Limit = Limit { what: "reason", most: REASON_BYTES_MAX };
pub(super) const META: Limit = Limit { what: "metadata", most: META_BYTES_MAX };
pub(super) const INLINE: Limit = Limit { what: "inline payload", most: INLINE_BYTES_MAX };
pub(super) const CALLS: Limit = Limit { what: "calls", most: NUMBERS_PER_RECORD };
/// Of calls that ask for tensors.
pub(super) const ASKED: Limit = Limit { what: "calls that ask", most: NUMBERS_PER_RECORD };
/// Of calls that the other side has made.
pub(super) const KNOWN: Limit = Limit { what: "calls that are known", most: NUMBERS_PER_RECORD };
pub(super) const TOKENS: Limit = Limit { what: "tokens", most: NUMBERS_PER_RECORD };
pub(super) const KEYS: Limit = Limit { what: "keys", most: KEY_LIST_BYTES_MAX };
pub(super) const ROWS: Limit = Limit { what: "names of rows", most: NAMED_ROWS_BYTES_MAX };
pub(super) const SUBJECT: Limit = Limit { what: "subject", most: KEY_BYTES_MAX };

/// The bit of a section's 16 that says that it has its other form.
const OTHER: u16 = 1 << 15;

/// A field of fixed size.
pub(super) trait Fixed: Copy {
    /// As it is in a record.
    type Raw: FromBytes + IntoBytes + Immutable;

    fn raw(self) -> Self::Raw;

    /// # Errors
    /// It has no such value.
    fn of(raw: Self::Raw) -> Result<Self, Malformed>;
}

macro_rules! as_they_are {
    ($($type:ty),*) => {$(
        impl Fixed for $type {
            type Raw = $type;

            #[inline]
            fn raw(self) -> $type {
                self
            }

            #[inline]
            fn of(raw: $type) -> Result<$type, Malformed> {
                Ok(raw)
            }
        }
    )*};
}

as_they_are!(u16, u32, u64, i64, Span, super::Moved);

impl Fixed for bool {
    type Raw = u8;

    #[inline]
    fn raw(self) -> u8 {
        self.into()
    }

    #[inline]
    fn of(raw: u8) -> Result<bool, Malformed> {
        if raw <= 1 { Ok(raw == 1) } else { Err(Malformed { what: "neither true nor false" }) }
    }
}

impl Fixed for Option<u16> {
    type Raw = u32;

    fn raw(self) -> u32 {
        self.map_or(u32::MAX, u32::from)
    }

    fn of(raw: u32) -> Result<Option<u16>, Malformed> {
        if raw == u32::MAX { Ok(None) } else { raw.try_into().map(Some).map_err(|_| Malformed { what: "peer" }) }
    }
}

/// A field of any length.
pub(super) trait Section<'a>: Sized {
    /// Appends it; returns its 16 bits in the head.
    ///
    /// # Errors
    /// It exceeds its limit.
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong>;

    /// # Errors
    /// It exceeds its limit or the record, or is not what it has to be.
    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed>;
}

impl<'a> Section<'a> for &'a [u8] {
    #[inline]
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        to.bytes(self, limit)
    }

    #[inline]
    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        from.bytes(limit.what, bits, limit.most)
    }
}

impl<'a> Section<'a> for &'a str {
    #[inline]
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        let text = if limit == REASON { cut(self, limit.most) } else { self };
        to.bytes(text.as_bytes(), limit)
    }

    #[inline]
    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        from.text(limit.what, bits, limit.most)
    }
}

/// Numbers; the 16 bits are their count. They come in front of other sections.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl<'a> Section<'a> for &'a [$number] {
            #[inline]
            fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
                let count = limit.check(self.len())?;
                to.append(self.as_bytes());
                Ok(count)
            }

            #[inline]
            fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
                from.numbers(limit.what, bits.into(), limit.most)
            }
        }
    )*};
}

numbers!(u32, u64);

impl<'a> Section<'a> for KeyList<'a> {
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        to.bytes(self.as_bytes(), limit)
    }

    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        KeyList::of(from.bytes(limit.what, bits, limit.most)?)
    }
}

impl<'a> Section<'a> for NamedRows<'a> {
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        to.bytes(self.as_bytes(), limit)
    }

    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        let rows = from.bytes(limit.what, bits, limit.most)?;
        NamedRows::parse(rows).map_err(|_| Malformed { what: limit.what })
    }
}

impl<'a> Section<'a> for CallList<'a> {
    #[inline]
    fn put(&self, _: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        to.append(self.fixed().as_bytes());
        self.sections().iter().for_each(|section| to.append(section));
        Ok(0)
    }

    #[inline]
    fn take(_: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        let calls = CallList::read(from.fixed()?, from)?;
        match limit {
            ASKED => calls.has_no_data()?,
            KNOWN => calls.has_no_keys()?,
            _ => {}
        }
        Ok(calls)
    }
}

/// Where the payload of a tensor is that goes to the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadAt<'a> {
    /// In the record itself; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the arena; the client must not touch it until the call ends.
    Arena(Span),
}

impl<'a> Section<'a> for PayloadAt<'a> {
    #[inline]
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        match self {
            PayloadAt::Inline(bytes) => to.bytes(bytes, limit),
            PayloadAt::Arena(span) => Ok(to.other(span)),
        }
    }

    #[inline]
    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        match bits {
            OTHER => Ok(PayloadAt::Arena(from.fixed()?)),
            bits => Ok(PayloadAt::Inline(from.bytes(limit.what, bits, limit.most)?)),
        }
    }
}

/// Where a recv's tensor is to go, and the metadata of the only tensors that it takes: empty for any that fit.
impl<'a> Section<'a> for Option<(Span, &'a [u8])> {
    #[inline]
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        match self {
            None => Ok(0),
            Some((span, meta)) => Ok(to.other(span) | to.bytes(meta, limit)?),
        }
    }

    #[inline]
    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        match bits {
            0 => Ok(None),
            OTHER.. => Ok(Some((from.fixed()?, from.bytes(limit.what, bits & !OTHER, limit.most)?))),
            _ => Err(Malformed { what: limit.what }),
        }
    }
}

/// A block of the receive area.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Block {
    span: Span,
    token: u64,
}

/// Where the payload of an arrived tensor is, if it is not in a list of small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedAt {
    /// At the beginning of the destination that the client gave.
    Destination {
        /// How many bytes of it were written.
        len: u64,
    },
    /// In the receive area, until the client returns the token.
    Area { span: Span, token: u64 },
    /// As `Area`; in addition the tables stay in place until the token is returned, and others wait for that.
    Lending {
        span: Span,
        /// The token to return, as soon as possible.
        token: u64,
    },
}

impl Section<'_> for ReceivedAt {
    fn put(&self, _: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        match *self {
            ReceivedAt::Destination { len } => to.append(len.as_bytes()),
            ReceivedAt::Area { span, token } | ReceivedAt::Lending { span, token } => {
                to.append(Block { span, token }.as_bytes());
            }
        }
        Ok(match self {
            ReceivedAt::Destination { .. } => 0,
            ReceivedAt::Area { .. } => 1,
            ReceivedAt::Lending { .. } => 2,
        })
    }

    fn take(bits: u16, limit: Limit, from: &mut Sections<'_>) -> Result<Self, Malformed> {
        if bits == 0 {
            return Ok(ReceivedAt::Destination { len: from.fixed()? });
        }
        let Block { span, token } = from.fixed()?;
        match bits {
            1 => Ok(ReceivedAt::Area { span, token }),
            2 => Ok(ReceivedAt::Lending { span, token }),
            _ => Err(Malformed { what: limit.what }),
        }
    }
}

/// Where the payload of a pushed tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedAt<'a> {
    /// In the record itself; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// In the receive area, until the client returns the token.
    Area { span: Span, token: u64 },
}

impl<'a> Section<'a> for AcceptedAt<'a> {
    fn put(&self, limit: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        match *self {
            AcceptedAt::Inline(bytes) => to.bytes(bytes, limit),
            AcceptedAt::Area { span, token } => Ok(to.other(&Block { span, token })),
        }
    }

    fn take(bits: u16, limit: Limit, from: &mut Sections<'a>) -> Result<Self, Malformed> {
        if bits == OTHER {
            let Block { span, token } = from.fixed()?;
            return Ok(AcceptedAt::Area { span, token });
        }
        Ok(AcceptedAt::Inline(from.bytes(limit.what, bits, limit.most)?))
    }
}

/// The fields of an error that have a fixed size.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FailureHead {
    step: i64,
    waited_s: u64,
    waited_ns: u32,
    subject_bytes: u16,
    reason_bytes: u16,
    code: u8,
    operation: u8,
    delivery_unknown: u8,
    unused: [u8; 5],
}

impl Section<'_> for Error {
    fn put(&self, _: Limit, to: &mut Sink<'_>) -> Result<u16, TooLong> {
        let Failure { code, operation, delivery_unknown, step, waited, subject, reason } = Failure::of(self);
        let head = FailureHead {
            step,
            waited_s: waited.as_secs(),
            waited_ns: waited.subsec_nanos(),
            subject_bytes: SUBJECT.check(subject.len())?,
            reason_bytes: REASON.check(reason.len())?,
            code,
            operation,
            delivery_unknown: delivery_unknown.into(),
            unused: [0; _],
        };
        [head.as_bytes(), subject.as_bytes(), reason.as_bytes()].into_iter().for_each(|part| to.append(part));
        Ok(0)
    }

    fn take(_: u16, _: Limit, from: &mut Sections<'_>) -> Result<Self, Malformed> {
        let head: FailureHead = from.fixed()?;
        Failure {
            code: head.code,
            operation: head.operation,
            delivery_unknown: head.delivery_unknown != 0,
            step: head.step,
            waited: Failure::waited(head.waited_s, head.waited_ns)?,
            subject: from.text(SUBJECT.what, head.subject_bytes, SUBJECT.most)?,
            reason: from.text(REASON.what, head.reason_bytes, REASON.most)?,
        }
        .into_error()
    }
}

impl Limit {
    /// The length of a field, which fits into 15 bits, as limits.rs asserts.
    ///
    /// # Errors
    /// It exceeds the limit.
    #[inline]
    pub(super) fn check(self, len: usize) -> Result<u16, TooLong> {
        if len <= self.most { Ok(len as u16) } else { Err(TooLong { what: self.what, len, limit: self.most }) }
    }
}

impl Sink<'_> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8], limit: Limit) -> Result<u16, TooLong> {
        let len = limit.check(bytes.len())?;
        self.append(bytes);
        Ok(len)
    }

    /// Appends what a section has in its other form.
    #[inline]
    fn other<F: IntoBytes + Immutable>(&mut self, fixed: &F) -> u16 {
        self.append(fixed.as_bytes());
        OTHER
    }
}

/// Bytes of a head in its record.
pub(super) const fn head_bytes<Head>() -> usize {
    assert!(size_of::<Head>() <= FIXED_BYTES_MAX);
    size_of::<Head>().next_multiple_of(8)
}

/// Declares an enum whose values are records, with the number of each kind. Fields of fixed size come first; behind the semicolon are
/// the sections with their limits.
macro_rules! records {
    ($(#[$meta:meta])* pub enum $name:ident<$life:lifetime> as $what:literal { $(
        $(#[$kind_meta:meta])*
        $kind:ident = $number:literal $({
            $($(#[$fixed_meta:meta])* $fixed:ident: $fixed_type:ty),*
            $(; $($(#[$section_meta:meta])* $section:ident: $section_type:ty = $limit:ident),+)?
            $(,)?
        })?
    ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name<$life> { $(
            $(#[$kind_meta])*
            $kind $({
                $($(#[$fixed_meta])* $fixed: $fixed_type,)*
                $($($(#[$section_meta])* $section: $section_type,)+)?
            })?
        ),+ }

        /// The heads of the records.
        mod heads {
            #[allow(unused_imports, reason = "not all enums have fields of these types")]
            use super::*;
        $(
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
            #[repr(C, packed)]
            pub(super) struct $kind { $(
                $(pub(super) $fixed: <$fixed_type as crate::shm::codec::Fixed>::Raw,)*
                $($(pub(super) $section: u16,)+)?
            )? }
        )+ }

        impl<$life> $name<$life> {
            /// Writes it into a record.
            ///
            /// # Errors
            /// [`TooLong`] for a field over its limit.
            #[inline]
            pub fn encode(&self, into: &mut Record) -> Result<(), TooLong> {
                match self { $(
                    Self::$kind $({ $($fixed,)* $($($section,)+)? })? => {
                        #[allow(unused_mut, reason = "a kind may have no sections")]
                        let mut sink = Sink::new(into, codec::head_bytes::<heads::$kind>());
                        let head = heads::$kind { $(
                            $($fixed: Fixed::raw(*$fixed),)*
                            $($($section: Section::put($section, codec::$limit, &mut sink)?,)+)?
                        )? };
                        sink.end($number, &head);
                    }
                )+ }
                Ok(())
            }

            /// Reads one from a record, which may hold anything.
            ///
            /// # Errors
            /// [`Malformed`] if it is none: an unknown kind, a field over its limit, lengths that do not add up, text that is not UTF-8.
            /// The caller must check calls, peers, spans and tokens itself.
            // Inlined, its many kinds would meet in registers, to be stored once more.
            #[inline(never)]
            pub fn decode(record: &$life Record) -> Result<Self, Malformed> {
                match record.kind() { $(
                    $number => {
                        #[allow(unused_mut, unused_variables, reason = "a kind may have neither fields nor sections")]
                        let (head, mut sections) = record.head::<heads::$kind>()?;
                        $(
                            $(let $fixed = Fixed::of(head.$fixed)?;)*
                            $($(let $section = Section::take(head.$section, codec::$limit, &mut sections)?;)+)?
                        )?
                        sections.end()?;
                        // Last, so that it is made where it is returned.
                        Ok(Self::$kind $({ $($fixed,)* $($($section,)+)? })?)
                    }
                )+
                    _ => Err(Malformed { what: concat!("an unknown kind of ", $what) }),
                }
            }
        }
    };
}
pub(super) use records;

/// Passes damaged copies of a record to `read`, which says why it refuses one. Shorter and longer ones must be refused.
#[cfg(test)]
pub(super) fn damage(record: &super::Record, read: &mut dyn FnMut(&super::Record) -> Result<(), &'static str>) {
    let (kind, content) = (record.kind(), record.content().to_vec());
    let mut damaged = super::Record::new();
    for len in 0..content.len() {
        damaged.set(kind, &content[..len]);
        read(&damaged).expect_err("a record that was cut");
    }
    damaged.set(kind, &[&content[..], &[0]].concat());
    assert_eq!(read(&damaged), Err("a record is too long for its fields"), "{record:?}");
    for (word, bit) in (0..content.len().min(16)).flat_map(|word| (0..u64::BITS).map(move |bit| (word, bit))) {
        let mut content = content.clone();
        content[word] ^= 1 << bit;
        damaged.set(kind, &content);
        let _either = read(&damaged);
    }
}
