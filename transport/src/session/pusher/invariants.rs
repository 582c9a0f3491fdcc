//! What must hold of streams between any two calls of their session, on the pushing side.

use super::{Handle, Pusher, QueueName, Stream, TOLD_AGAIN_MAX, What};

impl<D: PartialEq + Clone> Pusher<D> {
    /// # Errors
    /// The inconsistency.
    pub(in crate::session) fn check(&self) -> Result<(), String> {
        let mut pushes = 0;
        for (handle, stream) in self.streams.iter() {
            stream.check().map_err(|what| format!("stream {handle:?} into '{}': {what}", stream.queue))?;
            let lists = self.to_send.iter().chain(&self.held_back).chain(&self.starved);
            let places = lists.filter(|&&queued| queued == handle).count();
            if places != usize::from(stream.queued) {
                return Err(format!(
                    "stream {handle:?} waits {places} times to leave, its flag says {}",
                    stream.queued
                ));
            }
            if self.names.get(&QueueName(stream.from, stream.to, &stream.queue)) != Some(&handle) {
                return Err(format!("stream {handle:?} is not found by its name"));
            }
            pushes += stream.entries.iter().map(|entry| entry.count() as usize).sum::<usize>();
        }
        match pushes == self.pushes && self.names.len() == self.streams.len() {
            true => Ok(()),
            false => {
                Err(format!("{pushes} pushes wait in {} streams, {} are counted", self.streams.len(), self.pushes))
            }
        }
    }

    /// Checks that the other side of a stream can be where it says it is: `next` pushes came there, with `bytes` bytes, and
    /// this much credit is left.
    ///
    /// # Errors
    /// The disagreement.
    pub(in crate::session) fn check_accepted(
        &self,
        handle: Handle,
        (next, bytes): (u64, u64),
        (messages, granted_bytes): (u64, u64),
    ) -> Result<(), String> {
        let Some(stream) = self.streams.get(handle) else {
            // The oldest ended streams are no longer kept.
            let is_told = self.closed.contains(&handle) || self.closed.len() >= TOLD_AGAIN_MAX;
            return is_told.then_some(()).ok_or_else(|| "it has ended, and the peer will not be told".into());
        };
        let Stream { first, left, .. } = *stream;
        if next < first || next > left {
            return Err(format!("{first} pushes are known to have come and {left} have left, but {next} came"));
        }
        let mut left = 0;
        for entry in stream.entries.iter().take_while(|entry| entry.number < next) {
            left += match &entry.what {
                What::One(..) => entry.bytes,
                // One push of a frame may have been refused, and the others may have to come again.
                What::Many(batch) => {
                    let came = batch.records().iter().take((next - entry.number) as usize);
                    came.map(|record| record.map_or(0, |(_, payload)| payload.len() as u64)).sum()
                }
            };
        }
        if stream.bytes_before + left != bytes {
            return Err(format!("the first {next} pushes have {} bytes, but {bytes} came", stream.bytes_before + left));
        }
        if stream.granted_messages > messages || stream.granted_bytes > granted_bytes {
            let here = (stream.granted_messages, stream.granted_bytes);
            return Err(format!("{here:?} may leave, but {:?} was granted", (messages, granted_bytes)));
        }
        Ok(())
    }
}

impl<D: Clone> Stream<D> {
    fn check(&self) -> Result<(), String> {
        let Stream { next, sent, tried, granted_messages, granted_bytes, bytes_before, .. } = *self;
        let count = self.entries.len();
        if sent > tried || tried > count {
            return Err(format!("{sent} pushes left on this link, {tried} on any, of {count}"));
        }
        let bytes: u64 = self.entries.iter().take(sent).map(|entry| entry.bytes).sum();
        if bytes != self.bytes_sent {
            return Err(format!("{bytes} bytes left, {} are counted", self.bytes_sent));
        }
        let ready: u64 = self.entries.range(sent..tried).map(|entry| entry.bytes).sum();
        let mut number = self.first;
        for (place, entry) in self.entries.iter().enumerate() {
            if place == sent && number != next || place == tried && number != self.fresh {
                return Err(format!("push {number} is next, {next} and {} are counted", self.fresh));
            }
            if (place < tried) != (entry.number == number) {
                return Err(format!("push {number} would be found as {}", entry.number));
            }
            if place >= tried && matches!(entry.what, What::Many(_)) {
                return Err(format!("{} pushes that are not tried would stay together", entry.count()));
            }
            number += u64::from(entry.count());
        }
        if !(next..=self.fresh).contains(&self.left) {
            return Err(format!("{} pushes left, of {} that may have", self.left, self.fresh));
        }
        if ready != self.bytes_ready {
            return Err(format!("{ready} bytes are to leave, {} are counted", self.bytes_ready));
        }
        if let Some(last) = sent.checked_sub(1) {
            // The last one may exceed what is left of the credit.
            let before = match &self.entries[last].what {
                What::One(..) => bytes_before + bytes - self.entries[last].bytes,
                What::Many(batch) => {
                    let last =
                        batch.records().iter().last().expect("one at least").map_err(|error| error.to_string())?;
                    bytes_before + bytes - last.1.len() as u64
                }
            };
            if next > granted_messages || before >= granted_bytes {
                let left = (next, before);
                return Err(format!("{left:?} left, {:?} was granted", (granted_messages, granted_bytes)));
            }
        }
        Ok(())
    }
}
