//! Entry points to the parsers of the attach protocol, for the fuzz targets: input is parsed, then serialized again for
//! comparison.

use super::{Answer, AttachError, Request, RequestError, client, daemon, encode};

/// Parses a client's request, and returns it as a client would write it.
///
/// # Errors
/// It is not a valid request.
pub fn request(message: &[u8]) -> Result<Vec<u8>, RequestError> {
    daemon::parse_request(message).map(|request: Request| encode(&request))
}

/// Parses a daemon's answer, and returns it as a daemon would write it.
///
/// # Errors
/// It is not a valid answer; or it is a refusal, as the client's caller sees it.
pub fn answer(message: &[u8]) -> Result<Vec<u8>, AttachError> {
    match client::parse_answer(message)? {
        Answer::Refused(refused) => Err(client::refusal(refused)),
        answer => Ok(encode(&answer)),
    }
}
