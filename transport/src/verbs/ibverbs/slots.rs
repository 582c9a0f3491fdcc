//! A table indexed by small, reused numbers.

pub(super) struct Slots<T> {
    entries: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), vacant: Vec::new() }
    }

    pub(super) fn insert(&mut self, entry: T) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.entries[at as usize] = Some(entry);
            return at;
        }
        self.entries.push(Some(entry));
        u32::try_from(self.entries.len() - 1).expect("fewer entries than the device has keys, which are 24 bits")
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.entries.get(at as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let entry = self.entries.get_mut(at as usize)?.take()?;
        self.vacant.push(at);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut slots = Slots::new();
        assert_eq!((slots.insert('a'), slots.insert('b')), (0, 1));
        assert_eq!(slots.remove(0), Some('a'));
        assert_eq!(slots.remove(0), None);
        assert_eq!(slots.remove(7), None);
        assert_eq!(slots.insert('c'), 0);
        *slots.get_mut(1).unwrap() = 'd';
        assert_eq!((slots.get(0), slots.get(1), slots.get(2)), (Some(&'c'), Some(&'d'), None));
        assert_eq!(slots.iter_mut().count(), 2);
    }
}
