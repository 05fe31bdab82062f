/** Starts the console: loads the styles, resumes a session, and renders the page. */
import { render } from 'preact';
import '@xterm/xterm/css/xterm.css';
import './styles/tokens.css';
import './styles/base.css';
import './styles/layout.css';
import './styles/controls.css';
import './styles/tables.css';
import './styles/dialogs.css';
import './styles/pages.css';
import './styles/instance.css';
import './styles/charts.css';
import './styles/operator.css';
import './styles/ports.css';
import { App } from './app.tsx';
import { showEnding, takeEnding } from './oidc.ts';
import { listenForNavigation } from './router.ts';
import { resumeSession } from './session.ts';
import { applyTheme } from './theme.ts';

applyTheme();
listenForNavigation();
const root = document.getElementById('app');
if (root) render(<App />, root);
const ending = takeEnding();
void resumeSession().then(() => showEnding(ending));
