//! How many messages a round takes, both ways: each engine counts what it sends, and the ps's says how many when it is
//! asked, before and after a round. The question and its answer are a handful more.

use bytes::Bytes;
use sealane_fusion::{DType, Error, LocalEngine, LocalPair, Tensor, TensorMeta, Unreceived};

use super::parameters::told;

/// The keys of a question, whose step is its number, and of the answer.
const QUESTION: &str = "how many messages";
const ANSWER: &str = "so many messages";

/// A tensor without content, for a word that only needs to arrive.
pub(super) fn word() -> Result<Tensor, Error> {
    Tensor::new(TensorMeta::new(DType::U8, &[0])?, Bytes::new())
}

/// What both sides have sent so far. Questions are numbered from 0 on.
pub(super) async fn sent(worker: &LocalEngine, pair: &LocalPair, question: i64) -> Result<u64, Error> {
    // The answer says whether it was heard.
    drop(pair.send(question, QUESTION, word()?));
    let answer = pair.recv(question, ANSWER).await.map_err(|Unreceived { error, .. }| error)?;
    Ok(answer.elements::<u64>()?[0] + worker.counters().messages_sent)
}

/// Answers on the ps's shard until the engine stops.
pub(super) async fn answer(ps: LocalEngine, pair: LocalPair) {
    let answers = async {
        for question in 0.. {
            pair.recv(question, QUESTION).await.map_err(|Unreceived { error, .. }| error)?;
            let sent = Tensor::from_elements(&[], &[ps.counters().messages_sent])?;
            pair.send(question, ANSWER, sent).await?;
        }
        Ok(())
    };
    told("nobody counts messages any more", answers).await;
}
