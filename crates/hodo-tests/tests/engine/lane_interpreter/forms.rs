//! Encodings of gathers and scatters, and of masked loads and stores: Intel's manual, volume 2, chapter 2.

/// An instruction in one of its widths.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub name: &'static str,
    pub is_evex: bool,
    /// The table of opcodes: 1 is 0F, 2 is 0F 38.
    map: u8,
    /// The mandatory prefix: 1 is 66, 2 is F3, 3 is F2.
    prefix: u8,
    w: bool,
    opcode: u8,
    /// Bytes of the vectors that the prefix selects.
    len: usize,
    /// Bytes that a lane accesses.
    pub size: usize,
    /// Bytes of an index of a gather or scatter.
    pub index_size: Option<usize>,
    pub stores: bool,
}

/// Which registers and which displacement an instruction has.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    pub data: u8,
    /// A vector register of a gather or scatter, or else a general register.
    pub index: Option<u8>,
    pub mask: u8,
    pub base: Option<u8>,
    /// The scale is two to this power.
    pub power: u8,
    pub displacement: Displacement,
    /// Whether addresses have four bytes.
    pub is_narrow: bool,
    pub zeroes: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Displacement {
    None,
    /// In units, if the prefix is EVEX.
    Byte(i8),
    Four(i32),
}

impl Form {
    /// The largest number of lanes that its registers have.
    pub fn lanes(&self) -> usize {
        self.len / self.size.max(self.index_size.unwrap_or(1))
    }

    /// Bytes of the vector of indices.
    pub fn index_len(&self) -> usize {
        self.lanes() * self.index_size.unwrap_or(0)
    }

    /// Bytes of the vector of data.
    pub fn data_len(&self) -> usize {
        self.lanes() * self.size
    }

    /// What one means in a displacement of one byte.
    fn unit(&self) -> i32 {
        match (self.is_evex, self.index_size) {
            (false, _) => 1,
            (true, Some(_)) => self.size as i32,
            (true, None) => self.len as i32,
        }
    }

    /// What is added to an address.
    pub fn displacement(&self, operands: &Operands) -> i32 {
        match operands.displacement {
            Displacement::None => 0,
            Displacement::Byte(units) => i32::from(units) * self.unit(),
            Displacement::Four(bytes) => bytes,
        }
    }

    fn prefix(&self, operands: &Operands) -> Vec<u8> {
        let bit = |number: Option<u8>, bit: u8| number.unwrap_or(0) >> bit & 1 == 1;
        let not = |is_set: bool, at: u8| u8::from(!is_set) << at;
        let (r, b) = (bit(Some(operands.data), 3), bit(operands.base, 3));
        let x = bit(operands.index, 3);
        let first = not(r, 7) | not(x, 6) | not(b, 5);
        let w = u8::from(self.w) << 7;
        if !self.is_evex {
            let length = u8::from(self.len == 32) << 2;
            return vec![
                0xC4,
                first | self.map,
                w | (!operands.mask & 15) << 3 | length | self.prefix,
            ];
        }
        let length = (self.len / 32) as u8;
        vec![
            0x62,
            first | not(bit(Some(operands.data), 4), 4) | self.map,
            w | 15 << 3 | 1 << 2 | self.prefix,
            u8::from(operands.zeroes) << 7
                | length << 5
                | not(bit(operands.index, 4), 3)
                | operands.mask,
        ]
    }

    pub fn encode(&self, operands: &Operands) -> Vec<u8> {
        const NO_INDEX: u8 = 4;
        const NO_BASE: u8 = 5;
        let mut bytes = Vec::new();
        if operands.is_narrow {
            bytes.push(0x67);
        }
        bytes.extend(self.prefix(operands));
        bytes.push(self.opcode);
        let base = operands.base.map_or(NO_BASE, |base| base & 7);
        let (mode, displacement): (u8, Vec<u8>) = match (operands.displacement, operands.base) {
            (Displacement::Four(bytes), None) => (0, bytes.to_le_bytes().to_vec()),
            (_, None) => panic!("without a base, there are four bytes"),
            (Displacement::None, Some(_)) if base != NO_BASE => (0, Vec::new()),
            (Displacement::None, Some(_)) => (1, vec![0]),
            (Displacement::Byte(units), Some(_)) => (1, vec![units.cast_unsigned()]),
            (Displacement::Four(bytes), Some(_)) => (2, bytes.to_le_bytes().to_vec()),
        };
        bytes.push(mode << 6 | (operands.data & 7) << 3 | 4);
        let index = operands.index.map_or(NO_INDEX, |index| index & 7);
        bytes.push(operands.power << 6 | index << 3 | base);
        bytes.extend(displacement);
        bytes
    }
}

/// A gather: its name, what is added to its opcode, the bytes of an index and of a lane.
const GATHERS: [(&str, &str, u8, usize, usize); 8] = [
    ("vpgatherdd", "vpscatterdd", 0, 4, 4),
    ("vpgatherdq", "vpscatterdq", 0, 4, 8),
    ("vpgatherqd", "vpscatterqd", 1, 8, 4),
    ("vpgatherqq", "vpscatterqq", 1, 8, 8),
    ("vgatherdps", "vscatterdps", 2, 4, 4),
    ("vgatherdpd", "vscatterdpd", 2, 4, 8),
    ("vgatherqps", "vscatterqps", 3, 8, 4),
    ("vgatherqpd", "vscatterqpd", 3, 8, 8),
];

/// A masked move of AVX: its name, its opcodes for loads and stores, `W`, and the bytes of a lane.
const VEX_MOVES: [(&str, [u8; 2], bool, usize); 4] = [
    ("vmaskmovps", [0x2C, 0x2E], false, 4),
    ("vmaskmovpd", [0x2D, 0x2F], false, 8),
    ("vpmaskmovd", [0x8C, 0x8E], false, 4),
    ("vpmaskmovq", [0x8C, 0x8E], true, 8),
];

/// The same of AVX-512, with the mandatory prefix.
const EVEX_MOVES: [(&str, [u8; 2], bool, usize, u8); 6] = [
    ("vmovdqu8", [0x6F, 0x7F], false, 1, 3),
    ("vmovdqu16", [0x6F, 0x7F], true, 2, 3),
    ("vmovdqu32", [0x6F, 0x7F], false, 4, 2),
    ("vmovdqu64", [0x6F, 0x7F], true, 8, 2),
    ("vmovups", [0x10, 0x11], false, 4, 0),
    ("vmovupd", [0x10, 0x11], true, 8, 1),
];

/// The gathers of AVX2; with `is_wide` also the gathers and scatters of AVX-512.
pub fn gathers(is_wide: bool) -> Vec<Form> {
    let mut forms = Vec::new();
    for (gather, scatter, number, index_size, size) in GATHERS {
        let form = |is_evex: bool, stores: bool, len: usize| Form {
            name: if stores { scatter } else { gather },
            is_evex,
            map: 2,
            prefix: 1,
            w: size == 8,
            opcode: if stores { 0xA0 } else { 0x90 } + number,
            len,
            size,
            index_size: Some(index_size),
            stores,
        };
        forms.extend([16, 32].map(|len| form(false, false, len)));
        if is_wide {
            forms.extend([16, 32, 64].map(|len| form(true, false, len)));
            forms.extend([16, 32, 64].map(|len| form(true, true, len)));
        }
    }
    forms
}

/// Masked loads and stores.
pub fn masked_moves(is_wide: bool) -> Vec<Form> {
    let mut forms = Vec::new();
    let form = |name, size, len: usize, stores| Form {
        name,
        is_evex: false,
        map: 2,
        prefix: 1,
        w: false,
        opcode: 0,
        len,
        size,
        index_size: None,
        stores,
    };
    for stores in [false, true] {
        for (name, opcodes, w, size) in VEX_MOVES {
            forms.extend([16, 32].map(|len| Form {
                w,
                opcode: opcodes[usize::from(stores)],
                ..form(name, size, len, stores)
            }));
        }
        for (name, opcodes, w, size, prefix) in EVEX_MOVES {
            let all = [16, 32, 64].map(|len| Form {
                is_evex: true,
                map: 1,
                prefix,
                w,
                opcode: opcodes[usize::from(stores)],
                ..form(name, size, len, stores)
            });
            forms.extend(all.into_iter().filter(|_| is_wide));
        }
    }
    forms
}
