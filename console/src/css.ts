/** Style sheets are imported for what the bundler does with them. */
declare module '*.css';
