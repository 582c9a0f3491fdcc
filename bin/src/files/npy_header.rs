//! The header of an `.npy` file: a Python dictionary of three entries (NEP 1). Pure code.
//!
//! Read here and not by a parser of Python literals: a header is untrusted, and this reader neither recurses nor
//! multiplies what it has not checked.

use std::fmt::Write;

/// What a file begins with, before its version.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read; one of 254 dimensions has some 5,000 bytes.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// The tensor's bytes begin at a multiple of this.
const ALIGNMENT: usize = 64;
/// Magic, version and the header's length, in version 1.0.
const PREFIX_BYTES: usize = 10;

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// numpy's name of the type, as in `<f4`.
    pub(super) descr: String,
    /// The first dimension varies fastest.
    pub(super) fortran_order: bool,
    /// The dimensions.
    pub(super) shape: Vec<u64>,
}

impl Header {
    /// Reads the header of a file; also, where the tensor's bytes begin.
    pub(super) fn decode(file: &[u8]) -> Result<(Header, usize), String> {
        let truncated = || "the file ends within its header; copy it again".to_owned();
        if !file.starts_with(MAGIC) {
            return Err("byte 0: this is not a numpy file; save it with numpy.save".to_owned());
        }
        let (version, rest) = file[MAGIC.len()..].split_first_chunk::<2>().ok_or_else(truncated)?;
        let (length, rest) = match version {
            [1, 0] => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            [2 | 3, 0] => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            [major, minor] => {
                return Err(format!("byte 6: format version {major}.{minor} is unknown; 1.0, 2.0 and 3.0 are read"));
            }
        };
        if length > HEADER_BYTES_MAX {
            return Err(format!("byte 8: the header has {length} bytes; at most {HEADER_BYTES_MAX} are read"));
        }
        let start = file.len() - rest.len();
        let text = rest.get(..length).ok_or_else(truncated)?;
        let mut reader = Reader { text, at: 0 };
        let header = reader.header().map_err(|problem| format!("byte {}: {problem}", start + reader.at))?;
        Ok((header, start + length))
    }

    /// The start of a file of version 1.0, up to where the tensor's bytes begin.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut shape = String::new();
        for dimension in &self.shape {
            write!(shape, "{dimension}, ").expect("a string takes everything");
        }
        // A tuple of one has a comma behind it, and no other needs one.
        let shape = if self.shape.len() == 1 { shape.trim_end() } else { shape.trim_end_matches(", ") };
        let order = if self.fortran_order { "True" } else { "False" };
        let mut text = format!("{{'descr': '{}', 'fortran_order': {order}, 'shape': ({shape}), }}", self.descr);
        let unpadded = PREFIX_BYTES + text.len() + 1;
        text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(ALIGNMENT) - unpadded));
        text.push('\n');
        let length = u16::try_from(text.len()).expect("254 dimensions of 20 digits are no 64 KiB");
        [MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat()
    }
}

/// Goes through the header's text once, from left to right.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn header(&mut self) -> Result<Header, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while self.peek() != Some(b'}') {
            let start = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            match key {
                b"descr" => descr = Some(self.descr()?),
                b"fortran_order" => fortran_order = Some(self.boolean()?),
                b"shape" => shape = Some(self.shape()?),
                other => {
                    self.at = start;
                    return Err(format!("'{}' is not a header entry", other.escape_ascii()));
                }
            }
            if self.peek() != Some(b'}') {
                self.expect(b',')?;
            }
        }
        self.expect(b'}')?;
        if self.peek().is_some() {
            return Err("the header's dictionary is followed by other data".to_owned());
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Header { descr, fortran_order, shape }),
            (None, _, _) => Err("the header has no 'descr'".to_owned()),
            (_, None, _) => Err("the header has no 'fortran_order'".to_owned()),
            (_, _, None) => Err("the header has no 'shape'".to_owned()),
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Result<(), String> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.at += 1;
                Ok(())
            }
            Some(found) => {
                Err(format!("found '{}' where '{}' was expected", found.escape_ascii(), wanted.escape_ascii()))
            }
            None => Err(format!("the header ends where '{}' was expected", wanted.escape_ascii())),
        }
    }

    /// The bytes while they are of a kind.
    fn run(&mut self, is_part: impl Fn(&u8) -> bool) -> &'a [u8] {
        let text = self.text;
        let rest = &text[self.at..];
        let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn string(&mut self) -> Result<&'a [u8], String> {
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err("a quoted string should be here".to_owned()),
        };
        self.at += 1;
        let text = self.run(|byte| *byte != quote && *byte != b'\\');
        self.expect(quote)?;
        Ok(text)
    }

    fn descr(&mut self) -> Result<String, String> {
        if self.peek() == Some(b'[') {
            return Err("the elements are records; save each field as an array of its own".to_owned());
        }
        let descr = self.string()?;
        Ok(descr.escape_ascii().to_string())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.peek();
        match self.run(u8::is_ascii_alphabetic) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => Err("'fortran_order' is neither True nor False".to_owned()),
        }
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while self.peek() != Some(b')') {
            let digits = self.run(u8::is_ascii_digit);
            let dimension = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            shape.push(dimension.ok_or("a dimension is no number from 0 to 2^64 - 1")?);
            if self.peek() != Some(b')') {
                self.expect(b',')?;
            }
        }
        self.expect(b')')?;
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(text: &str) -> Vec<u8> {
        [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    }

    fn problem(file: &[u8]) -> String {
        Header::decode(file).unwrap_err()
    }

    #[test]
    fn headers_come_back_and_leave_the_bytes_aligned() {
        for shape in [vec![], vec![0], vec![7], vec![2, 3], vec![u64::MAX; 254]] {
            let header = Header { descr: "<f4".to_owned(), fortran_order: false, shape };
            let bytes = header.encode();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Header::decode(&bytes), Ok((header, bytes.len())));
        }
    }

    #[test]
    fn what_other_programs_write_is_read() {
        let expected = Header { descr: "|b1".to_owned(), fortran_order: true, shape: vec![2, 3] };
        let text = "{\"shape\": (2,3,), \"fortran_order\": True, \"descr\": \"|b1\"}  \n";
        assert_eq!(Header::decode(&file(text)).unwrap().0, expected);
        let mut second = file(text);
        second.splice(6..10, [3, 0].into_iter().chain((text.len() as u32).to_le_bytes()));
        assert_eq!(Header::decode(&second), Ok((expected, second.len())));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        assert!(problem(b"PK").starts_with("byte 0: "));
        assert!(problem(b"\x93NUMPY\x01").starts_with("the file ends within its header"));
        assert!(problem(b"\x93NUMPY\x04\x00").starts_with("byte 6: format version 4.0 is unknown"));
        assert!(problem(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").starts_with("byte 8: the header has 4294967295 bytes"));
        assert!(problem(b"\x93NUMPY\x01\x00\x09\x00{").starts_with("the file ends within its header"));
        let cases = [
            ("[]", "byte 10: found '[' where '{' was expected"),
            ("{'x': 1}", "byte 11: 'x' is not a header entry"),
            ("{'descr': [('a', '<f4')]}", "byte 20: the elements are records"),
            ("{'descr': '<f4'", "byte 25: the header ends where ',' was expected"),
            ("{'descr': 4}", "byte 20: a quoted string should be here"),
            ("{'fortran_order': 1}", "byte 28: 'fortran_order' is neither True nor False"),
            ("{'shape': (-1,)}", "byte 21: a dimension is no number"),
            ("{'shape': (18446744073709551616,)}", "byte 41: a dimension is no number"),
            ("{'shape': (1,)}", "byte 25: the header has no 'descr'"),
            ("{'descr': ''}", "byte 23: the header has no 'fortran_order'"),
            ("{'descr': '', 'fortran_order': True}", "byte 46: the header has no 'shape'"),
            ("{} {}", "byte 13: the header's dictionary is followed"),
        ];
        for (text, expected) in cases {
            assert!(problem(&file(text)).starts_with(expected), "{text}: {}", problem(&file(text)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::decode(&bytes);
            let _ = Header::decode(&[MAGIC, &bytes].concat());
        }

        #[test]
        fn any_text_is_checked_without_panic(text in r"[\{\}\(\)':,a-z0-9 ]{0,80}") {
            let _ = Header::decode(&file(&text));
            let _ = Header::decode(&file(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({text})}}")));
        }
    }
}
