//! Private real servers on free ports and a fault proxy; development only
