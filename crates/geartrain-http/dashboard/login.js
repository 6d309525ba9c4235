// The login page: its theme, and what came of the last try. Logging in itself needs no script.

import './prefs.js';

document.getElementById('failed').hidden = !location.search.includes('failed');
