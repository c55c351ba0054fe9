//! Landing pads: where a function continues after an exception.

use gimli::{EndianSlice, LittleEndian, Reader};

/// Returns the landing pads of the function at `start`, whose table is at the beginning of `data`.
pub(crate) fn landing_pads(data: &[u8], addr: u64, start: u64, pads: &mut Vec<u64>) -> Option<()> {
    let mut reader = EndianSlice::new(data, LittleEndian);
    let total = data.len();
    let base_encoding = reader.read_u8().ok()?;
    let base = match base_encoding {
        0xFF => start,
        encoding => {
            let at = addr + (total - reader.len()) as u64;
            value(&mut reader, encoding, at)?
        }
    };
    let type_encoding = reader.read_u8().ok()?;
    if type_encoding != 0xFF {
        reader.read_uleb128().ok()?;
    }
    let site_encoding = reader.read_u8().ok()?;
    let len = usize::try_from(reader.read_uleb128().ok()?).ok()?;
    let mut sites = reader.split(len).ok()?;
    while !sites.is_empty() {
        value(&mut sites, site_encoding & 15, 0)?;
        value(&mut sites, site_encoding & 15, 0)?;
        let pad = value(&mut sites, site_encoding & 15, 0)?;
        sites.read_uleb128().ok()?;
        if pad != 0 {
            pads.push(base.wrapping_add(pad));
        }
    }
    Some(())
}

fn value(reader: &mut EndianSlice<'_, LittleEndian>, encoding: u8, at: u64) -> Option<u64> {
    let value = match encoding & 15 {
        0x00 | 0x04 | 0x0C => reader.read_u64().ok()?,
        0x01 => reader.read_uleb128().ok()?,
        0x02 => u64::from(reader.read_u16().ok()?),
        0x03 => u64::from(reader.read_u32().ok()?),
        0x09 => reader.read_sleb128().ok()? as u64,
        0x0A => reader.read_i16().ok()? as u64,
        0x0B => reader.read_i32().ok()? as u64,
        _ => return None,
    };
    Some(match encoding & 0x70 {
        0x10 => value.wrapping_add(at),
        _ => value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_are_relative_to_the_function() {
        // No base, no types, uleb128 sites: two sites, one with a pad at 0x20.
        let data = [0xFF, 0xFF, 0x01, 8, 0, 5, 0, 0, 5, 5, 0x20, 0];
        let mut pads = Vec::new();
        landing_pads(&data, 0, 0x1000, &mut pads).unwrap();
        assert_eq!(pads, [0x1020]);
    }

    #[test]
    fn broken_tables_are_ignored() {
        let mut pads = Vec::new();
        assert!(landing_pads(&[0xFF], 0, 0, &mut pads).is_none());
        assert!(landing_pads(&[0xFF, 0xFF, 0x0D, 4, 1, 2, 3, 4], 0, 0, &mut pads).is_none());
    }
}
