//! The addresses of nodes: a table from node index to whatever a transport calls an address.
//!
//! Touches nothing. Invariant: a lookup is one index, because it is made for every unicast frame.

/// Addresses by node index.
#[derive(Debug)]
pub(crate) struct AddressTable<A> {
    entries: Vec<Option<A>>,
}

impl<A: Copy + PartialEq> AddressTable<A> {
    pub(crate) fn new() -> Self {
        AddressTable {
            entries: Vec::new(),
        }
    }

    /// Takes note of an address; false if it was known already.
    pub(crate) fn learn(&mut self, node: u16, address: A) -> bool {
        let index = usize::from(node);
        if self.entries.len() <= index {
            self.entries.resize(index + 1, None);
        }
        let changed = self.entries[index] != Some(address);
        self.entries[index] = Some(address);
        changed
    }

    pub(crate) fn forget(&mut self, node: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(node)) {
            *entry = None;
        }
    }

    /// The nodes that have one.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u16> {
        let known = self.entries.iter().enumerate();
        let known = known.filter(|(_, entry)| entry.is_some());
        known.map(|(node, _)| node as u16)
    }

    pub(crate) fn get(&self, node: u16) -> Option<A> {
        self.entries.get(usize::from(node)).copied().flatten()
    }
}
